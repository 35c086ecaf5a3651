"""`tutti report`: a page beside the records, and one sentence for every mistake."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest
from sample_records import make_record

from tutti.cli import main


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """Two runs, without evaluations, so that there is little to draw."""
    for index, name in enumerate(("ring", "ddp"), start=1):
        make_record(name, accuracies=()).save(tmp_path / "runs" / f"{index:02d}-{name}.json")
    return tmp_path / "runs"


def test_a_page_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "<h1>2 runs on digits</h1>" in page
    assert page.index(">ring<") < page.index(">ddp<")
    assert capsys.readouterr().out == f"report: {folder / 'report.html'}\n"
    assert sorted(os.listdir(folder)) == ["01-ring.json", "02-ddp.json", "report.html"]


def test_a_page_of_some_records(folder: Path) -> None:
    assert main(["report", str(folder / "02-ddp.json")]) == 0
    assert "<h1>ddp on digits</h1>" in (folder / "report.html").read_text()


def test_a_studys_own_page_is_left_alone(folder: Path) -> None:
    (folder / "report.html").write_text("the study's")
    for path in folder.glob("*.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "command": "tutti study drops --quick"}))
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_text() == "the study's"
    assert (folder / "runs.html").exists()


def test_a_page_somewhere_else(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").exists()
    assert not (folder / "report.html").exists()


def test_the_browser_shows_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: shown.append(address) or len(shown) == 1)
    assert main(["report", str(folder), "--open"]) == 0
    assert shown == [(folder / "report.html").as_uri()]
    assert capsys.readouterr().err == ""
    assert main(["report", str(folder), "--open"]) == 0
    assert "there is no browser here" in capsys.readouterr().err


def test_csv_and_tensorboard_as_well(folder: Path, tmp_path: Path) -> None:
    more = ["--csv", str(tmp_path / "runs.csv"), "--tensorboard", str(tmp_path / "board")]
    assert main(["report", str(folder), *more]) == 0
    assert (folder / "report.html").exists()
    with (tmp_path / "runs.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["ring", "ddp"]
    assert sorted(os.listdir(tmp_path / "board")) == ["01-ring", "02-ddp"]


def test_csv_on_standard_output_is_nothing_but_csv(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--csv", "-"]) == 0
    captured = capsys.readouterr()
    assert [row["name"] for row in csv.DictReader(io.StringIO(captured.out))] == ["ring", "ddp"]
    assert captured.err.startswith("report: ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "cannot read nowhere: No such file or directory"),
        (["empty"], "there is no record of a run in empty"),
        (["runs/notes.txt"], "runs/notes.txt is no record of a run"),
        (["old.json"], "is a record of another version of tutti"),
        (["runs", "--out", "nowhere/page.html"], "there is no folder nowhere for --out"),
        (["runs", "--out", "runs"], "cannot write --out runs: it is a folder"),
        (["runs", "--csv", "nowhere/x.csv"], "there is no folder nowhere for --csv"),
    ],
)
def test_mistakes_get_one_sentence(
    arguments: list[str],
    sentence: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("empty").mkdir()
    Path("runs/notes.txt").write_text("notes")
    Path("old.json").write_text('{"format": 0, "measurements": []}')
    before = sorted(Path().rglob("*"))
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tutti: ")
    assert sentence in error
    assert error.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


def test_without_tensorboard_no_page_either(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["report", str(folder), "--tensorboard", str(folder / "board")]) == 2
    assert "needs the package tensorboard" in capsys.readouterr().err
    assert sorted(os.listdir(folder)) == ["01-ring.json", "02-ddp.json"]


@pytest.mark.parametrize("command", ["report", "runs"])
def test_help_has_examples_and_imports_nothing_heavy(command: str) -> None:
    program = (
        "import sys; from tutti.cli import main\n"
        f"try: main([{command!r}, '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'rich', 'matplotlib'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"  tutti {command} " in done.stdout


def test_a_report_needs_no_torch(folder: Path) -> None:
    program = (
        f"import sys; from tutti.cli import main; main(['report', {str(folder)!r}]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
