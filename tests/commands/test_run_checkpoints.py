"""`tutti run --checkpoint-every` and `--continue`: killed at any moment, a run goes on with the same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import with_tests

from tutti.cli import main
from tutti.clock import Clock
from tutti.errors import RunFailed, UserError
from tutti.lab.record import Record
from tutti.lab.started import Started, find_folder
from tutti.launch import LaunchOptions, launch
from tutti.resuming import Keeping
from tutti.tasks.base import find_task
from tutti.train import Plan, train

STEPS, EVERY = 24, 4
WORK = ["--steps", str(STEPS), "--global-batch", "32", "--samples", "320", "--quiet"]
WORK += ["--optimizer", "adam", "--lr", "0.002"]
SAVES = ["--checkpoint-every", str(EVERY), "--keep", "2"]


def read(out: Path) -> Record:
    (record,) = (Record.load(path) for path in out.glob("*.json"))
    return record


def check_same(whole: Path, parts: Path, counted: tuple[str, ...] = ("bytes_per_step", "lost")) -> None:
    """Weights, losses and accuracies, bit by bit; and all that is counted."""
    one, other = torch.load(whole.with_suffix(".pt")), torch.load(parts.with_suffix(".pt"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    for ours, theirs in zip(read(whole).measurements, read(parts).measurements, strict=True):
        assert ours["losses"] == theirs["losses"]
        assert [_without_times(entry) for entry in ours["evaluations"]] == [
            _without_times(entry) for entry in theirs["evaluations"]
        ]
        for key in ("samples", "own_accuracy", "classes", *counted):
            assert ours[key] == theirs[key], key


def _without_times(entry: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in entry.items() if key not in ("enter", "leave", "seconds")}


class Stop(Exception):
    """Ends a run that is made of threads, as if it had been killed."""


def stop_behind(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run ends behind this step, just before its checkpoint would be written."""
    from tutti import stopwatch

    end = stopwatch.Stopwatch.end

    def ending(self: Any, loss: Any, samples: int) -> None:
        end(self, loss, samples)
        if len(self._log.seconds) == step:
            raise Stop

    monkeypatch.setattr(stopwatch.Stopwatch, "end", ending)


# --- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "more"),
    [
        ("ddp", ["--partition", "dirichlet(0.1)"]),
        ("relay-sgd", ["--loss", "10%"]),
        ("d-psgd-overlap", ["--loss", "10%"]),
        ("single", []),
    ],
)
def test_it_goes_on_with_the_same_bits(
    spec: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped twice: in the first epoch, and later behind an evaluation."""
    monkeypatch.chdir(tmp_path)
    words = [spec, *WORK, *more, "--engine", "threads", "--workers", "3"]
    assert main(["run", *words, "--out", "whole", "--save", "whole.pt"]) == 0
    commands = ["run", *words, *SAVES, "--out", "parts", "--save", "parts.pt"], ["run", "--continue", "parts"]
    for step, command in zip((6, 19), commands, strict=True):
        with monkeypatch.context() as patch:
            stop_behind(step, patch)
            assert main(command) == 1
    capsys.readouterr()
    assert main(["run", "--continue", "parts"]) == 0
    assert "tutti: the run goes on from parts/checkpoints/step-00000016\n" in capsys.readouterr().err
    # what combine-first has under way at the edges of a run is counted or not, as it comes
    check_same(Path("whole"), Path("parts"), *([()] if "overlap" in spec else []))
    assert read(Path("parts")).measurements[0]["continued"] == [4, 16]
    assert sorted(path.name for path in Path("parts/checkpoints").glob("*step*")) == ["step-00000016", "step-00000020"]
    assert main(["run", "--continue", "parts"]) == 2
    assert capsys.readouterr().err == f"tutti: the run in parts is finished; its record is parts/01-{spec}.json\n"


def test_seconds_of_the_parts_add_up_and_saving_is_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a save that takes a second of a clock that is ours."""
    from tutti import resuming

    save, slept = resuming.Saver._save, []

    def slow(self: Any) -> Any:
        def work() -> None:
            save.fget(self)()  # type: ignore[attr-defined]
            self._run.comm.barrier()
            Clock().sleep(1.0)
            self._run.comm.barrier()
            slept.append(1)

        return work

    words = ["run", "ddp", *WORK, "--engine", "threads", "--workers", "2", "--checkpoint-every", "8"]
    with monkeypatch.context() as patch:
        patch.setattr(resuming.Saver, "_save", property(slow))
        stop_behind(17, patch)
        assert main([*words, "--out", str(tmp_path / "run")]) == 1
    assert len(slept) == 4
    assert main(["run", "--continue", str(tmp_path / "run")]) == 0
    for each in read(tmp_path / "run").measurements:
        assert each["ends"] == sorted(each["ends"])
        assert len(each["ends"]) == STEPS
        gaps = [after - before for before, after in zip(each["ends"], each["ends"][1:], strict=False)]
        assert gaps[7] < 1.0, "the first save took longer"
        assert sum(each["seconds"]) <= each["ends"][-1] + 1e-9


def test_where_nothing_was_saved_it_starts_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "ddp", *WORK, "--engine", "threads", "--workers", "2"]
    assert main([*words, "--out", str(tmp_path / "whole"), "--save", str(tmp_path / "whole.pt")]) == 0
    with monkeypatch.context() as patch:
        stop_behind(3, patch)
        assert main([*words, *SAVES, "--out", str(tmp_path / "parts"), "--save", str(tmp_path / "parts.pt")]) == 1
    assert main(["run", "--continue", str(tmp_path / "parts"), "--keep", "1"]) == 0
    assert "yet: the run starts from the beginning" in capsys.readouterr().err
    check_same(tmp_path / "whole", tmp_path / "parts")
    assert len(list((tmp_path / "parts" / "checkpoints").glob("step-*"))) == 1


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run that is not finished, with one checkpoint."""
    with monkeypatch.context() as patch:
        stop_behind(6, patch)
        words = ["ddp", *WORK, *SAVES, "--engine", "threads", "--workers", "2", "--out", str(tmp_path / "run")]
        assert main(["run", *words]) == 1
    capsys.readouterr()
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--lr", "0.1"], "was started with --lr 0.002; leave --lr out"),
        (["--seed", "1"], "was started with --seed 0; leave --seed out"),
        (["--momentum", "0.8"], "was started with --momentum 0.9; leave --momentum out"),
        (["--workers", "3"], "was started with --workers 2; leave --workers out"),
        (["--engine", "processes"], "was started with --engine threads; leave --engine out"),
        (["--epochs", "2"], "was started without --epochs; leave --epochs out"),
        (["--tuned"], "was started without --tuned; leave --tuned out"),
        (["--resume"], "--resume keeps runs that are finished, --continue goes on with one that is not; give one"),
        (["ring"], "is of 'ddp', not of 'ring'; leave the spec out"),
        (["--out", "elsewhere"], "leave --out out"),
    ],
)
def test_options_that_contradict_are_refused(
    words: list[str], sentence: str, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words, "--continue", str(stopped)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tutti: ")
    assert said.count("\n") == 1
    assert sentence in said


def test_the_same_options_again_are_no_contradiction(stopped: Path) -> None:
    assert main(["run", "ddp", *WORK, "--continue", str(stopped), "--out", str(stopped), "--workers", "2"]) == 0


def test_a_damaged_checkpoint_is_named_before_any_worker_starts(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (find_folder(stopped) / "step-00000004" / "manifest.json").unlink()
    assert main(["run", "--continue", str(stopped)]) == 2
    assert "manifest.json is missing: this checkpoint is not complete" in capsys.readouterr().err


def test_a_new_run_does_not_mix_with_checkpoints_that_are_there(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "ddp", *WORK, *SAVES, "--engine", "threads", "--out", str(stopped)]) == 2
    assert f"go on with tutti run --continue {stopped}, choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--continue", "nowhere"], "nowhere holds no run to continue: there is no nowhere/checkpoints/run.json"),
        ([], "tutti run needs one SPEC such as ddp (or --continue DIR)"),
        (["ddp", "--keep", "2"], "--keep says how many checkpoints stay, and there are none"),
        (["@specs", "--checkpoint-every", "5"], "--checkpoint-every is for one run and there are 2"),
        (["ddp", "--checkpoint-every", "5", "--resume", "--out", "out"], "--checkpoint-every saves one that is not"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").write_text("ddp\nring\n")
    assert main(["run", *words, *(["--engine", "threads"] if words and words[0] != "--continue" else [])]) == 2
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["specs"]


def test_what_a_run_was_started_with_can_be_damaged(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = find_folder(stopped) / "run.json"
    path.write_text(path.read_text()[:40])
    assert main(["run", "--continue", str(stopped)]) == 2
    assert f"{path} is damaged: it is not whole, or not JSON" in capsys.readouterr().err


def test_reading_it_imports_no_torch() -> None:
    """This process may have to move to where hosts are made, which takes one thread."""
    code = "import sys, tutti.lab.started; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=with_tests({})).returncode == 0


# --- processes -------------------------------------------------------------------------------------------------------

PLAN = Plan(steps=40, epochs=None, global_batch=32, samples=320, optimizer="adam", lr=0.002)


def run_on_processes(parts: Path, goes_on: bool, listen: Any = lambda _: None) -> Any:
    keeping = Keeping(str(parts / "checkpoints"), EVERY, 2, goes_on)
    modules = ("tutti.train", *find_task(PLAN.task).modules)
    options = LaunchOptions(2, threads=1, preload=modules)
    return launch(train, ("d-psgd", PLAN, f"{parts}.pt", keeping), options, listen)


def find_workers(launcher: int) -> list[int]:
    """The leaves of its tree of processes that are neither servers nor trackers; those started first come first."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    below, found = {launcher}, set[int]()
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        found |= below
    leaves = sorted(found - set(parents.values()))
    return [pid for pid in leaves if len(list(Path(f"/proc/{pid}/task").glob("*"))) > 1]


class Killer:
    """Kills one worker a random moment after this step was heard of."""

    def __init__(self, step: int, worker: int, chance: random.Random) -> None:
        self._step, self._worker, self._after, self.killed = step, worker, chance.uniform(0, 0.05), False

    def __call__(self, event: dict[str, Any]) -> None:
        if event.get("step", 0) < self._step or self.killed:
            return
        self.killed = True
        Clock().sleep(self._after)
        with suppress(ProcessLookupError):
            os.kill(find_workers(os.getpid())[self._worker], signal.SIGKILL)


def test_workers_are_killed_at_random_moments_and_the_rest_is_the_same(tmp_path: Path) -> None:
    """Again and again; the weights, losses and accuracies are those of a run that nobody disturbed."""
    chance, parts = random.Random(7), tmp_path / "parts"
    whole = run_on_processes(tmp_path / "whole", goes_on=False)
    kills = [Killer(chance.randrange(5, 18), 0, chance), Killer(chance.randrange(18, 34), 1, chance)]
    for number, killer in enumerate(kills):
        with pytest.raises(RunFailed):
            run_on_processes(parts, number > 0, killer)
    found = run_on_processes(parts, goes_on=True)
    one, other = torch.load(tmp_path / "whole.pt"), torch.load(tmp_path / "parts.pt")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert found[0]["continued"], "it did go on"
    for ours, theirs in zip(whole, found, strict=True):
        assert ours["losses"] == theirs["losses"]
        assert [*map(_without_times, ours["evaluations"])] == [*map(_without_times, theirs["evaluations"])]


def test_the_launcher_is_killed_and_the_command_goes_on(tmp_path: Path) -> None:
    """With SIGKILL, behind its first checkpoint; a run over processes that is never disturbed is what it is held to."""
    whole, parts, clock = tmp_path / "whole", tmp_path / "parts", Clock()
    words = ["d-psgd", *WORK, "--workers", "2", "--save", f"{parts}.pt", "--out", str(parts), *SAVES]
    command = [sys.executable, "-m", "tutti", "run", *words]
    with subprocess.Popen(command, env=with_tests({}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while run.poll() is None and not list(find_folder(parts).glob("step-*")):
            clock.sleep(0.01)
        workers = find_workers(run.pid)
        run.kill()
    assert run.returncode == -signal.SIGKILL, "it was killed before its end"
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        clock.sleep(0.01)
    assert main(["run", "--continue", str(parts)]) == 0
    assert main(["run", "d-psgd", *WORK, "--workers", "2", "--save", f"{whole}.pt", "--out", str(whole)]) == 0
    check_same(whole, parts)
    assert len(read(parts).measurements[0]["continued"]) == 1
    with pytest.raises(UserError, match="is finished"):
        Started.read(parts)
    assert not list(find_folder(parts).glob(".step*"))
