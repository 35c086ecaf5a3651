"""`tutti study` as a person types it; the runs that are real have two workers, which are threads, and two steps."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_results import made_now, make_job_record

from tutti.cli import main
from tutti.commands import study
from tutti.lab.experiment import Job
from tutti.lab.record import Record
from tutti.lab.run import Entry
from tutti.lab.studies.aggregation import Aggregation
from tutti.lab.studies.base import find, names
from tutti.lab.studies.drops import Drops
from tutti.lab.studies.sweep import Sweep

SOURCE = Path(__file__).parent.parent.parent / "src"
SMALL = ["--workers", "2", "--aggregators", "sum", "--bad", "nan", "--steps", "2", "--seeds", "1"]


@pytest.fixture(name="small")
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Calls the command for a small part of a study; the process stays where it is."""
    monkeypatch.setattr(study, "enter", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    return lambda *options: main(["study", "aggregation", *SMALL, *options])


def test_whoever_interrupts_it_hears_that_it_goes_on(
    small: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "enter", interrupt)
    assert small() == 130
    said = "tutti: interrupted; nothing is left running; the same command goes on where it was\n"
    assert capsys.readouterr().err == said


def test_from_the_runs_to_the_story(
    small: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it with real workers, one of whom sends NaN, and then again with nothing left to do."""
    out, page = tmp_path / "runs" / "study" / "aggregation", tmp_path / "page"
    assert small("--json", "told.json", "--page", str(page)) == 0
    told = capsys.readouterr()
    for words in ("Ways to combine contributions", "sum at lr/2", "diverged", "does not hold", "2 honest workers"):
        assert words in told.out
    assert "report: runs/study/aggregation/report.html" in told.out.splitlines()
    assert "12/12 parameters-sum-corrected-nan-seed-0" in told.err
    assert re.search(r"about .* left", told.err)

    figures = json.loads((tmp_path / "told.json").read_text())["figures"]
    ends = {(each["aggregator"], each["lr_divided_by"], each["on"], each["sent"]): each for each in figures}
    assert len(ends) == 12
    assert ends["mean", 1, "gradients", "nan"]["diverged"] == 1, "a run that diverges has a record and a row"
    assert ends["mean", 1, "gradients", "nan"]["losses"] == [None]
    honest = ends["mean", 1, "gradients", "honest"]
    assert honest["diverged"] == 0
    assert ends["sum", 2, "gradients", "honest"]["losses"] == pytest.approx(honest["losses"], rel=1e-4)

    assert (page / "aggregation.md").read_text().startswith("# Ways to combine contributions\n")
    assert len(list(out.glob("*.json"))) == 12
    record = Record.load(out / "gradients-mean-honest-seed-0-1.json")
    assert (record.workers, record.steps, record.launch["engine"]) == (2, 2, "threads")

    before = {path: path.stat().st_mtime_ns for path in out.glob("*.json")}
    assert small() == 0
    again = capsys.readouterr()
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.json")} == before
    assert (again.out, again.err.count("kept")) == (told.out, 12)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were made, by nobody."""
    made: list[str] = []

    def run_once(entry: Entry, *args: Any) -> Record:
        made.append(entry.name)
        plan, options, *_ = args
        job = Job(entry.name, str(entry.algorithm), plan, options.workers, engine=options.engine)
        return made_now(make_job_record(job), options)

    monkeypatch.setattr("tutti.lab.experiment.run_once", run_once)
    monkeypatch.setattr("tutti.lab.story.fill_page", lambda *_: "")
    return made


def test_more_seeds_go_on_from_those_that_are_there(small: Callable[..., int], runs: list[str]) -> None:
    assert small("--quiet") == 0
    assert small("--quiet", "--seeds", "2") == 0
    assert len(runs) == 12 + 12
    assert all(name.endswith("-seed-1") for name in runs[12:])
    assert small("--quiet", "--seeds", "2", "--fresh") == 0
    assert len(runs) == 24 + 24


@pytest.mark.usefixtures("small")
def test_what_is_quick_can_be_changed_and_has_a_folder_of_its_own(runs: list[str], tmp_path: Path) -> None:
    assert main(["study", "aggregation", "--quick", "--aggregators", "sum", "--bad", "huge", "--quiet"]) == 0
    assert {name.rpartition("-")[2] for name in runs} == {"0"}
    folder = tmp_path / "runs" / "study" / "aggregation-quick"
    assert {Record.load(path).workers for path in folder.glob("*.json")} == {Aggregation.quick["workers"]}


@pytest.mark.usefixtures("runs")
def test_json_on_standard_output_is_nothing_but_json(
    small: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert small("--json", "-", "--quiet") == 0
    told = capsys.readouterr()
    assert {"finding", "claims", "figures"} == set(json.loads(told.out))
    assert "Ways to combine contributions" in told.err


# --- which there are, and what they take ------------------------------------------------------------------------------


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names()
    assert all(find(name).question in line for name, line in zip(names(), lines, strict=True))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("aggregation --workers none", "argument --workers: it takes a whole number such as 8, not 'none'"),
        ("aggregation --seeds 0", "argument --seeds: it must be at least 1, not 0"),
        ("aggregation --bad lies", "argument --bad: it is one of sign-flip, huge, nan, noise, zero, not 'lies'"),
        ("aggregation --workers 4", "'krum' needs at least 2 * bad + 3 = 5 workers, and there are 4"),
        ("aggregation --rounds 4", "unrecognized arguments: --rounds 4; see tutti study aggregation --help"),
        ("aggregation --json nowhere/x.json", "there is no folder nowhere for --json nowhere/x.json"),
        ("agregation", "there is no study 'agregation'; did you mean 'aggregation'?"),
        ("--quick aggregation", "unrecognized arguments: --quick"),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_mistake_gets_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["study", *shlex.split(words)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"tutti: {sentence}")
    assert error.count("\n") == 1
    assert not list(Path().iterdir())


def run(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as end:  # argparse's own
        return int(end.code or 0)


def test_what_is_needed_depends_on_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    for words, data in (([], []), (["--task", "mnist"], ["mnist"])):
        assert main(["study", "aggregation", "--quick", *words, "--needs"]) == 0
        assert json.loads(capsys.readouterr().out) == [data, ["loopback"]]


def test_an_option_may_be_given_several_times_and_a_flag_stands_alone() -> None:
    _, sweep = study._read("sweep", ["--vary", "momentum=0,0.9", "--vary", "lr=0.1:0.4:x2", "--samples", "none"])
    assert isinstance(sweep, Sweep)
    assert (sweep.vary, sweep.samples) == (("momentum=0,0.9", "lr=0.1:0.4:x2"), None)
    plain, tuned = (study._read("drops", words)[1] for words in ([], ["--tuned", "--rates", "5%,0.1"]))
    assert isinstance(plain, Drops)
    assert isinstance(tuned, Drops)
    assert (plain.tuned, tuned.tuned, tuned.rates) == (False, True, (0.05, 0.1))


def test_a_mistake_is_found_by_the_process_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.chdir(tmp_path)
    assert main(["study", "aggregation", "--seeds", "few"]) == 2
    assert capsys.readouterr().err == (
        "tutti: argument --seeds: it takes a whole number such as 8, not 'few'; see tutti study aggregation --help\n"
    )


def test_help_of_a_study_shows_its_options_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["study", "aggregation", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--workers WORKERS how many (default: 8, quick: 5)" in text
    assert "(default: sign-flip,huge,nan, quick: sign-flip,huge)" in text
    for option in ("--task", "--seeds", "--aggregators", "--quick", "--out", "--page", "--json", "--fresh", "--quiet"):
        assert option in text
    assert "--needs" not in text


def test_help_needs_neither_torch_nor_rich() -> None:
    program = (
        "import sys; from tutti.cli import main\n"
        "try: main(['study', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'rich', 'matplotlib'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "tutti study aggregation --quick" in done.stdout


def test_what_the_help_calls_by_name_is_there() -> None:
    called = re.findall(r"^  tutti study ([a-z][\w-]+)", study._EXAMPLES, flags=re.MULTILINE)
    assert called
    assert set(called) <= set(names())
