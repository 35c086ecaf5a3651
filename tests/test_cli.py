"""What a person types: results, files, and one sentence for every mistake."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tutti.cli import main
from tutti.commands.run import RACE
from tutti.lab.record import Record

SOURCE = Path(__file__).parent.parent / "src"
QUICK = ["--steps", "3", "--global-batch", "32", "--engine", "threads", "--workers", "2", "--quiet"]


def tutti(*args: str, timeout: float = 100.0, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tutti", *args]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "140", **more}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A name that is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


# --- results ----------------------------------------------------------------------------------------------------------


def test_compare_leaves_records_a_picture_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, result = tmp_path / "out", tmp_path / "result.json"
    specs = ["single", "ring", "gradient-average:all-reduce:star"]
    assert main(["compare", *specs, *QUICK, "--out", str(out), "--json", str(result)]) == 0
    rows = json.loads(result.read_text())
    assert [row["name"] for row in rows] == specs
    assert [row["workers"] for row in rows] == [1, 2, 2]
    assert rows[2]["spec"] == "gradient-average(all-reduce(star))"
    for row in rows:
        assert set(row) == {
            "name",
            "spec",
            "task",
            "workers",
            "steps",
            "accuracy",
            "loss",
            "step_seconds",
            "median_step_seconds",
            "train_seconds",
            "samples_per_second",
            "bytes_per_step",
            "busiest_bytes_per_step",
            "payload_bytes_per_step",
            "bytes_source",
            "anatomy",
        }
        assert set(row["anatomy"]) == {"compute", "hidden", "exposed"}
        assert set(row["samples_per_second"]) == {"mean", "std"}
        assert row["steps"] == 3
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-4)
    assert (out / "compare.png").stat().st_size > 10_000
    records = [Record.load(path) for path in sorted(out.glob("*.json"))]
    assert [record.name for record in records] == specs
    assert [record.row() for record in records] == rows
    assert "compare.png" in capsys.readouterr().out


def test_json_on_standard_output_is_nothing_but_json(tmp_path: Path) -> None:
    done = tutti("run", "ddp", *QUICK, "--out", str(tmp_path), "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["name"] == "ddp"
    assert "accuracy" in done.stderr


def test_csv_on_standard_output_is_nothing_but_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = ["run", "ddp", *QUICK, "--engine", "threads", "--out", str(tmp_path), "--csv", "-"]
    assert main(work) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["name"] == "ddp"
    assert main([*work, "--json", "-"]) == 2
    assert "--json and --csv cannot both go to standard output" in capsys.readouterr().err


def test_resume_keeps_what_is_finished(tmp_path: Path) -> None:
    first = ["compare", "ring", "ddp", *QUICK, "--out", str(tmp_path)]
    assert main(first) == 0
    records = sorted(tmp_path.glob("*.json"))
    before = [path.stat().st_mtime_ns for path in records]
    assert main([*first, "--resume"]) == 0
    assert [path.stat().st_mtime_ns for path in records] == before
    assert main([*first, "--resume", "--seed", "1"]) == 0
    assert [path.stat().st_mtime_ns for path in records] != before


def test_resume_finds_a_run_by_what_it_is_not_by_its_place(tmp_path: Path) -> None:
    assert main(["compare", "ring", "ddp", *QUICK, "--out", str(tmp_path)]) == 0
    (before,) = (path.stat().st_mtime_ns for path in tmp_path.glob("*-ddp.json"))
    assert main(["compare", "ddp", *QUICK, "--out", str(tmp_path), "--resume"]) == 0
    assert [path.stat().st_mtime_ns for path in tmp_path.glob("*-ddp.json")] == [before]


def test_what_fails_before_its_first_record_leaves_no_folder(tmp_path: Path) -> None:
    lacking = ["--task", "mnist", "--data", str(tmp_path / "nothing")]
    assert main(["run", "ddp", *QUICK, *lacking, "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    assert main(["run", "ddp", *QUICK, *lacking, "--out", str(tmp_path / "mine")]) == 2
    assert (tmp_path / "mine").exists()


def test_resume_without_a_folder_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ring", *QUICK, "--resume"]) == 2
    assert "--resume needs --out" in capsys.readouterr().err


def test_lost_messages_are_in_the_record_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "ring", *QUICK, "--loss", "40%", "--out", str(tmp_path)]) == 0
    (record,) = (Record.load(path) for path in tmp_path.glob("*.json"))
    assert record.plan["loss"] == 0.4
    lost = sum(measurement["lost"] for measurement in record.measurements)
    assert lost > 0
    assert "40 % of messages lost" in " ".join(capsys.readouterr().out.split())
    assert f"Messages lost on their way: {lost} of ring." in (tmp_path / "report.html").read_text()


def test_specs_from_a_file(tmp_path: Path) -> None:
    specs = tmp_path / "specs.txt"
    specs.write_text("  # two ways\nring\n\ngradient-average(all-reduce(star), bucket=1MiB)\n")
    assert main(["compare", f"@{specs}", *QUICK, "--out", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").glob("*.json"))) == 2


def test_processes_over_tls(tmp_path: Path, temporary: Path) -> None:
    out = tmp_path / "out"
    work = ("run", "ddp", "--steps", "3", "--workers", "2", "--tls", "--out", str(out))
    done = tutti(*work, TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    left = [path.name for path in temporary.iterdir() if path.name != "torchinductor_root"]  # a cache of torch's
    assert not left
    (record,) = (Record.load(path) for path in out.glob("*.json"))
    assert record.launch["tls"] is True
    assert record.launch["wire"] == "tcp"


def test_doctor(tmp_path: Path) -> None:
    done = tutti("doctor", "--json", str(tmp_path / "doctor.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads((tmp_path / "doctor.json").read_text())
    assert {"name", "status", "value", "advice"} <= set(checks[0])
    assert "torch" in done.stdout


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], ["run"], ["compare"], ["doctor"]])
def test_help_has_examples_and_does_not_import_torch(command: list[str]) -> None:
    program = (
        "import sys; from tutti.cli import main\n"
        f"try: main({[*command, '--help']!r})\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    assert done.returncode == 0, done.stderr
    assert f"tutti {(command or ['compare'])[0]}" in done.stdout


def test_the_race_is_a_choice_of_presets_and_the_two_references() -> None:
    """Seven ways that all average gradients, so that what they reach is the same and the time is what differs."""
    from tutti.presets import PRESETS

    assert len(RACE) == len(set(RACE)) == 7
    assert set(RACE) - set(PRESETS) == {"single", "torch-ddp"}
    assert all(PRESETS[name].startswith("gradient-average(") for name in RACE if name in PRESETS)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "rign"], "did you mean 'ring'?"),
        (["run", "ddp(bucket=fast)"], "takes a size such as 25MiB, or auto, not 'fast'"),
        (["run", "ddp(buckets=1MiB)"], "did you mean 'bucket'?"),
        (["run", "gradient-average(ring)"], "write all-reduce(ring)"),
        (["run", "ddp("], "found the end"),
        (["compare", "ring", "torch-ddp", "--engine", "threads"], "needs torch's process group"),
        (["run", "ddp", "--task", "digit"], "did you mean 'digits'?"),
        (["run", "ddp", "--model", "vgg-12"], "did you mean 'vgg-11'?"),
        (["run", "ddp", "--deadline", "soon"], "--deadline takes a time such as 40ms, not 'soon'"),
        (["run", "ddp", "--interface", "nowhere0"], "there is no interface 'nowhere0'"),
        (["run", "ddp", "--nodes", "2"], "needs --master"),
        (["run", "ddp", "--tls-cert", "no.crt"], "go together"),
        (["run", "ddp", "--tls-cert", "no.crt", "--tls-key", "no.key"], "there is no file no.crt"),
        (["run", "ddp", "--tls", "--wire", "torch"], "has no TLS"),
        (["run", "ddp", "--json", "no/such/folder.json"], "there is no folder"),
        (["run", "ddp", "--tls-ca", "no.crt"], "go together"),
        (["run", "ddp", "--loss", "some"], "--loss takes a share such as 10%, not 'some'"),
        (["run", "ddp", "--loss", "100%"], "--loss must be at most 99%, not 100%"),
        (["run", "torch-ddp", "--loss", "1%"], "'torch-ddp' leaves its messages to the backend, which loses none"),
        (["compare", "ring", "all-gather", "--loss", "1%"], "take a route such as ring, or leave --loss out"),
        (["run", "ddp", "--loss", "1%", "--wire", "torch"], "use --wire shared or tcp"),
        (["run", "ddp", "--deadline", "0s"], "--deadline must be at least 1s, not 0s"),
        (["run", "ddp", "--deadline", "3"], "takes a time such as 40ms, not '3'"),
        (["run", "ddp", "--json", "/"], "cannot write --json /"),
        (["compare", "@/dev/null"], "there are no specs in /dev/null"),
        (["compare", "@no-such-file"], "cannot read the specs in no-such-file"),
        (["run", "ddp", "--task", "synthetic(shape=3x8x8)", "--model", "vgg-11"], "not 3x8x8"),
    ],
)
def test_a_mistake_gets_a_sentence_and_exit_code_2(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = [] if "--out" in arguments else ["--out", str(tmp_path / "out"), "--quiet", "--steps", "1"]
    assert main([*arguments, *extra]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tutti: ")
    assert sentence in error
    assert "Traceback" not in error
    assert not list(tmp_path.glob("out/*.json"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "there is no command 'fly'; there is run, compare, "),
        (["cmopare"], "there is no command 'cmopare'; did you mean 'compare'? see tutti --help"),
        (["run", "ddp", "--workers", "0"], "takes a whole number from 1, not '0'"),
        (["run", "ddp", "--lr", "-1"], "takes a number above 0, not '-1'"),
        (["run", "ddp", "--lr", "nan"], "takes a number above 0, not 'nan'"),
        (["run", "ddp", "--momentum", "1"], "takes a number from 0 and below 1"),
        (["run", "ddp", "--seed", "-1"], "takes a whole number from 0"),
        (["run", "ddp", "--steps", "3", "--epochs", "1"], "not allowed with"),
        (["run", "ddp", "--batch", "3", "--global-batch", "1"], "not allowed with"),
        (["run", "ddp", "--optimizer", "sdg"], "--optimizer: there is no choice 'sdg'; did you mean 'sgd'? see"),
    ],
)
def test_a_wrong_option_gets_a_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert sentence in error


def test_a_run_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    assert "tutti run needs one SPEC such as ddp (or --continue DIR)" in capsys.readouterr().err


def test_too_many_workers_for_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = "synthetic(shape=1x32x32, samples=3)"
    work = ["--task", task, "--model", "lenet-5", "--engine", "threads", "--out", str(tmp_path), "--quiet"]
    assert main(["run", "ddp", "--workers", "4", "--steps", "1", "--global-batch", "3", *work]) == 2
    assert "4 workers cannot share 3 samples per step: take a global batch of at least 4" in capsys.readouterr().err
    assert main(["run", "ddp", "--workers", "4", "--steps", "1", *work]) == 2
    assert "64 samples per step are more than the 3 there are" in capsys.readouterr().err


def test_an_out_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["run", "ddp", *QUICK, "--out", str(blocked / "out")]) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_a_failed_run_gets_exit_code_1_and_the_workers_own_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> None:
        raise LookupError("the dog ate it")

    monkeypatch.setattr("tutti.train.Plan.build", break_down)
    assert main(["run", "ddp", *QUICK, "--out", str(tmp_path)]) == 1
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("tutti: worker ")
    assert first.endswith("raised LookupError: the dog ate it")
    assert any("break_down" in line for line in rest)
    assert not list(tmp_path.glob("*.json"))


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_a_temporary_folder_whose_name_is_too_long_for_sockets_will_do(tmp_path: Path) -> None:
    """Sockets have no names, and nothing is put there."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    done = tutti("run", "ddp", "--steps", "1", "--workers", "2", "--out", str(tmp_path / "out"), TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr
    assert not [path for path in folder.iterdir() if not path.name.startswith("torchinductor")], "torch's own cache"


def test_ctrl_c_says_so_and_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    out = tmp_path / "out"
    running = subprocess.Popen(
        [sys.executable, "-m", "tutti", "run", "ddp", "--epochs", "1000", "--workers", "2", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    limit = time.monotonic() + 60
    while len(children(*children(running.pid))) < 2 and time.monotonic() < limit:  # the fork server's: the workers
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    _, error = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "interrupted" in error
    assert "Traceback" not in error
    assert not [line for line in processes() if str(tmp_path) in line]
    assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]


def children(*parents: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found += [int(path.parent.name)] if parent in parents else []
    return found


def processes() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text().replace("\0", " "))
        except OSError:
            continue
    return lines
