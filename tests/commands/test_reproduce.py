"""`tutti reproduce` as a person types it, with a reproduction of this file's own that takes seconds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_results import made_now, make_job_record

from tutti.cli import main
from tutti.commands import reproduce
from tutti.commands.base import enter
from tutti.lab import reproductions
from tutti.lab.record import Record
from tutti.lab.reproductions.base import find, names
from tutti.lab.run import Entry
from tutti.launch import LaunchOptions

SOURCE = Path(__file__).parent.parent.parent / "src"
TINY = '''
"""Two workers that agree on noise."""

from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story
from tutti.lab.report.parts import Section, Table
from tutti.lab.reproductions.base import Claim, Reproduction
from tutti.train import Plan


class TinyNoise(Reproduction):
    title = "Noise on two workers"
    document = "a test"
    data = ()
    repeats = 2

    def jobs(self, quick):
        plan = Plan("synthetic(shape=1x32x32, samples=32)", "lenet-5", global_batch=8, epochs=None, steps=3)
        return [Job("over-a-ring", "ring", plan, 2)]

    def tell(self, results):
        record, *_ = results["over-a-ring"]
        claims = [Claim("Three steps are three [steps].", "3", str(record.steps), "reproduced", "They were counted.")]
        table = Table(("run", "steps"), [[record.name, str(record.steps)]], "All there is.")
        return Story(f"There were {record.steps} [steps].", claims, [Section("Steps", [table])])
'''


@pytest.fixture(name="tiny")
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Calls the command for the reproduction above, with its folder; the process stays where it is."""
    folder = tmp_path / "reproductions"
    folder.mkdir()
    (folder / "tiny_noise.py").write_text(TINY)
    monkeypatch.setattr(reproductions, "__path__", [*reproductions.__path__, str(folder)])
    monkeypatch.setattr(reproduce, "enter", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    yield lambda *options: main(["reproduce", "tiny-noise", "--quick", *options])
    sys.modules.pop("tutti.lab.reproductions.tiny_noise", None)


def test_from_the_runs_to_the_verdicts(
    tiny: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it with real workers, and then again with nothing left to do."""
    out, page = tmp_path / "runs" / "reproduce" / "tiny-noise-quick", tmp_path / "page"
    assert tiny("--json", "verdicts.json", "--page", str(page)) == 0
    told = capsys.readouterr()
    for words in ("Noise on two workers", "Three steps are three [steps].", "There were 3 [steps].", "reproduced"):
        assert words in told.out
    assert "report: runs/reproduce/tiny-noise-quick/report.html" in told.out.splitlines()
    assert "1/1 over-a-ring" in told.err
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert verdicts["finding"] == "There were 3 [steps]."
    assert [set(claim) for claim in verdicts["claims"]] == [{"text", "published", "ours", "verdict", "why"}]
    assert verdicts["claims"][0]["verdict"] == "reproduced"
    assert (page / "tiny-noise.md").read_text().startswith("# Noise on two workers\n")
    assert sorted(path.name for path in out.iterdir()) == ["over-a-ring-1.json", "report.html"]
    record = Record.load(out / "over-a-ring-1.json")
    assert (record.workers, record.steps, record.launch["network"]) == (2, 3, {"asked": "loopback"})

    (out / "report.html").unlink()
    assert tiny() == 0
    again = capsys.readouterr()
    assert Record.load(out / "over-a-ring-1.json") == record
    assert "kept" in again.err
    assert (again.out, (out / "report.html").exists()) == (told.out, True)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were made, by nobody."""
    made: list[str] = []

    def run_once(entry: Entry, _: Any, options: LaunchOptions, *__: Any) -> Record:
        made.append(entry.name)
        (job,) = find("tiny-noise").jobs(True)
        return made_now(make_job_record(job), options)

    monkeypatch.setattr("tutti.lab.experiment.run_once", run_once)
    monkeypatch.setattr("tutti.lab.story.fill_page", lambda *_: "")
    return made


def test_afresh_runs_again_and_removes_nothing_but_records(
    tiny: Callable[..., int], runs: list[str], tmp_path: Path
) -> None:
    (tmp_path / "package.json").write_text("{}")
    here = ("--out", ".", "--quiet")
    for options, count in (((), 1), ((), 1), (("--fresh",), 2), ((), 2)):
        assert tiny(*here, *options) == 0
        assert len(runs) == count
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["over-a-ring-1.json", "package.json"]


def test_json_on_standard_output_is_nothing_but_json(
    tiny: Callable[..., int], runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny("--json", "-", "--quiet") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["claims"][0]["verdict"] == "reproduced"
    assert "There were 3 [steps]." in told.err
    assert runs == ["over-a-ring"]


@pytest.mark.usefixtures("tiny")
def test_all_repetitions_are_run_where_there_is_time(runs: list[str], tmp_path: Path) -> None:
    assert main(["reproduce", "tiny-noise", "--quiet"]) == 0
    assert runs == ["over-a-ring"] * 2
    assert len(list((tmp_path / "runs" / "reproduce" / "tiny-noise").glob("*.json"))) == 2


def test_places_that_cannot_be_written_are_refused_before_the_first_run(
    tiny: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutti.lab.experiment.run_jobs", lambda *_: pytest.fail("it began"))
    (tmp_path / "file").write_text("")
    for options, sentence in (
        (["--out", "file/out"], "cannot write to file/out"),
        (["--page", "file/page"], "cannot write to file/page"),
        (["--json", "nowhere/verdicts.json"], "there is no folder nowhere"),
    ):
        assert tiny(*options) == 2
        error = capsys.readouterr().err
        assert error.startswith("tutti: ")
        assert sentence in error
        assert error.count("\n") == 1


# --- which there are --------------------------------------------------------------------------------------------------


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names()
    for line, name in zip(lines, names(), strict=True):
        assert find(name).title in line
        assert find(name).document in line


def test_an_unknown_name_is_a_mistake(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "vgg-cifra"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error == "tutti: there is no reproduction 'vgg-cifra'; did you mean 'vgg-cifar'?\n"
    assert list(tmp_path.iterdir()) == []


def test_help_needs_neither_torch_nor_rich() -> None:
    program = (
        "import sys; from tutti.cli import main\n"
        "try: main(['reproduce', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'rich', 'matplotlib'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "tutti reproduce vgg-cifar" in done.stdout


def test_what_the_help_calls_by_name_is_there() -> None:
    for name in re.findall(r"^  tutti reproduce ([a-z][\w-]+)", reproduce._EXAMPLES, flags=re.MULTILINE):
        assert name in names()


# --- data, and the way to the hosts -----------------------------------------------------------------------------------


class Outside:
    """Stands for the processes that `enter` starts, and for the namespace that it enters."""

    def __init__(self, answer: str, data_code: int = 0, code: int = 0, error: str = "") -> None:
        self.answer, self.data_code, self.code, self.error = answer, data_code, code, error
        self.log: list[str] = []

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "--needs" in command:
            return subprocess.CompletedProcess(command, self.code, self.answer, self.error)
        assert options["stdout"] is sys.stderr, "standard output is for results"
        self.log.append(" ".join(command[command.index("tutti") :]))
        return subprocess.CompletedProcess(command, self.data_code)

    def enter(self, *_: object) -> None:
        self.log.append("enter")


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Outside:
    outside = Outside(**request.param)
    monkeypatch.setattr("tutti.commands.base.subprocess.run", outside.run)
    monkeypatch.setattr("tutti.networks.hosts.Hosts.enter", outside.enter)
    monkeypatch.setattr("tutti.lab.experiment.run_jobs", lambda *_: pytest.fail("it began"))
    monkeypatch.chdir(tmp_path)
    return outside


def with_outside(**fields: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("outside", [fields], indirect=True, ids=[""])


@with_outside(answer='[["mnist", "cifar10"], ["hosts(1Gbit)"]]', data_code=1)
def test_data_that_cannot_be_fetched_ends_it(outside: Outside, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "vgg-cifar"]) == 1
    assert capsys.readouterr().err == "tutti: the data set mnist is needed and could not be fetched\n"
    assert outside.log == ["tutti data get mnist"]
    assert list(Path().iterdir()) == []


@with_outside(answer='[["mnist", "cifar10"], ["hosts(1Gbit)", "loopback"]]')
def test_data_is_fetched_while_there_is_a_way_out(outside: Outside) -> None:
    enter(["reproduce", "vgg-cifar"], quiet=False)
    assert outside.log == ["tutti data get mnist", "tutti data get cifar10", "enter"]


@with_outside(answer='[["mnist"], ["loopback"]]')
def test_nothing_is_entered_where_no_hosts_are_needed(outside: Outside) -> None:
    enter(["reproduce", "ring-lenet"], quiet=True)
    assert outside.log == ["tutti data get mnist --quiet"]


@with_outside(
    answer="", code=1, error="Traceback (most recent call last):\n  ...\nModuleNotFoundError: no matplotlib\n"
)
def test_a_reproduction_that_cannot_be_read_gets_one_sentence(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "vgg-cifar"]) == 1
    error = capsys.readouterr().err
    assert error == "tutti: tutti reproduce vgg-cifar cannot be read: ModuleNotFoundError: no matplotlib\n"
    assert outside.log == []


@pytest.mark.parametrize("name", names())
def test_the_question_is_answered_with_data_and_networks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", name, "--needs"]) == 0
    jobs = [*find(name).jobs(True), *find(name).jobs(False)]
    assert json.loads(capsys.readouterr().out) == [[*find(name).data], sorted({job.network for job in jobs})]
