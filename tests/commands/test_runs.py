"""`tutti runs`: every record under a folder, newest first, and for programs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from sample_records import make_empty, make_record

from tutti.cli import main
from tutti.commands.runs import _describe, _find, _fit
from tutti.lab.record import Record

LONG = "gradient-average(all-reduce(ring), bucket=16MiB)"


def save(record: Record, path: Path, begun: str) -> None:
    dataclasses.replace(record, begun=f"2026-{begun}:00+00:00").save(path)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs = tmp_path / "runs"
    save(make_record("ring"), runs / "a" / "01-ring.json", "01-02T10:00")
    save(make_record(LONG, network={"asked": "hosts(1Gbit)"}), runs / "b" / "c" / "01-long.json", "03-02T10:00")
    save(make_empty(), runs / "02-empty.json", "02-02T10:00")
    (runs / "old.json").write_text('{"format": 0, "measurements": []}')
    (runs / "results.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    return runs


@pytest.mark.usefixtures("folder")
def test_the_newest_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "begun, UTC" in lines[0]
    assert [line.split()[0] for line in lines if line.startswith(("2026", "–"))] == [
        *("2026-03-02", "2026-02-02", "2026-01-02", "–")
    ]
    ring = next(line for line in lines if " ring " in line)
    assert "2026-01-02 10:00  ring" in ring
    assert ring.split()[3:13] == ["digits", "–", "4", "–", "97.0", "%", "10.0", "ms", "362", "KiB"]
    assert "of another" in next(line for line in lines if "old.json" in line)
    assert not any("results.json" in line for line in lines)


@pytest.mark.usefixtures("folder")
def test_lines_are_whole_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert f"  {LONG}  " in lines[2]
    assert "b/c/01-long.json" in lines[2]


@pytest.mark.parametrize(("width", "columns"), [(160, 10), (110, 8), (90, 6), (60, 5)])
def test_a_terminal_shows_what_it_has_room_for(width: int, columns: int, folder: Path) -> None:
    rows = [_describe(each) for each in _find(folder)]
    console = Console(width=width, file=io.StringIO(), record=True)
    table = _fit(rows, folder, console)
    console.print(table)
    lines = console.export_text().splitlines()
    assert len(table.columns) == columns
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


@pytest.mark.usefixtures("folder")
def test_json_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--json", "-"]) == 0
    long, empty, ring, old = json.loads(capsys.readouterr().out)
    assert long["name"] == LONG
    assert long["network"] == "hosts(1Gbit)"
    assert ring["file"] == "runs/a/01-ring.json"
    assert ring["accuracy"] == 0.97
    assert empty["accuracy"] is None
    assert old["file"] == "runs/old.json"
    assert "another version" in old["problem"]


@pytest.mark.usefixtures("folder")
def test_csv_for_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--csv", "-"]) == 0
    out = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["name"] for row in rows] == [LONG, "empty", "ring", ""]
    assert "another version" in rows[3]["problem"]
    assert main(["runs", "--csv", str(tmp_path / "runs.csv")]) == 0
    assert (tmp_path / "runs.csv").read_text() == out
    assert "begun, UTC" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "there is no folder runs; "),
        (["empty"], "there is no record of a run in empty or below; "),
        (["empty", "--json", "nowhere/x"], "there is no folder nowhere for --json"),
    ],
)
def test_nothing_to_list_is_one_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert main(["runs", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tutti: {sentence}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["runs", "report"])
def test_damaged_records_are_reported_in_a_line_each_and_left_out(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_record("ring").save(tmp_path / "good.json")
    text = (tmp_path / "good.json").read_text()
    (tmp_path / "cut.json").write_text(text[:5000])
    data = json.loads(text)
    (tmp_path / "wrong.json").write_text(json.dumps({**data, "measurements": [{**data["measurements"][0], "ends": 3}]}))
    (tmp_path / "newer.json").write_text(json.dumps({**data, "name": "newer", "colour": "red"}))
    assert main([command, str(tmp_path), *(["--csv", "-"])]) == 0
    said = capsys.readouterr()
    assert sorted(row["name"] for row in csv.DictReader(io.StringIO(said.out))) == ["newer", "ring"]
    lines = [line for line in said.err.splitlines() if line.startswith("tutti: left out: ")]
    assert len(lines) == 2
    assert "cut.json is no record of a run: it is not whole, or not JSON" in lines[0]
    assert "wrong.json is no whole record of a run: measurements[0].ends is a whole number, not a list" in lines[1]
