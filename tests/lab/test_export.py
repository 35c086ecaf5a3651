"""Other programs read the same figures, from files that are whole or not there."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sample_records import make_empty, make_race, make_record

from tutti.errors import UserError
from tutti.lab import export
from tutti.lab.export import flatten, make_csv, write_csv, write_tensorboard, write_whole
from tutti.lab.record import Record


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Record.row() with the keys of what lies inside joined."""
    pairs = [(key, value) for key, value in row.items() if not isinstance(value, dict)]
    inner = [(f"{key}_{part}", v) for key, value in row.items() if isinstance(value, dict) for part, v in value.items()]
    return dict(pairs + inner)


# --- rows and CSV ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", make_race(), ids=lambda record: record.name)
def test_a_row_is_the_records_own_and_where_it_comes_from(record: Record) -> None:
    row = flatten(record)
    assert {key: row[key] for key in flat(record.row())} == flat(record.row())
    conditions = {"engine", "network", "partition", "loss_rate", "global_batch", "lr"}
    assert set(row) - set(flat(record.row())) == {"begun", "model", "wall_seconds"} | conditions


@pytest.mark.parametrize(
    ("network", "text"),
    [(None, None), ({"asked": "hosts(1Gbit)", "measured": []}, "hosts(1Gbit)"), ("as it was", "as it was")],
)
def test_the_network_is_what_was_asked_for(network: Any, text: str | None) -> None:
    assert flatten(make_record(network=network))["network"] == text


def test_what_is_missing_is_none() -> None:
    row = flatten(make_empty())
    assert row["steps"] == 0
    assert [key for key, value in row.items() if value is None] == [
        *(
            "network",
            "partition",
            "loss_rate",
            "lr",
            "accuracy",
            "loss",
            "step_seconds",
            "median_step_seconds",
            "train_seconds",
            "samples_per_second_mean",
            "samples_per_second_std",
        ),
        *("bytes_per_step", "busiest_bytes_per_step", "bytes_source", "payload_bytes_per_step"),
        *("anatomy_compute", "anatomy_hidden", "anatomy_exposed"),
    ]
    assert flatten(make_record(loss=math.nan))["loss"] is None


def test_csv_holds_a_row_per_record(tmp_path: Path) -> None:
    records = [*make_race(), make_empty(), make_record('a "name", with signs')]
    write_csv(records, tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [record.name for record in records]
    assert [float(row["step_seconds"]) for row in rows[:7]] == [record.step_seconds for record in records[:7]]
    assert rows[7]["accuracy"] == ""
    assert os.listdir(tmp_path) == ["runs.csv"]


def test_csv_has_every_column_that_any_row_has() -> None:
    rows = list(csv.DictReader(io.StringIO(make_csv([{"a": 1}, {"a": 2, "b": 3}]))))
    assert rows == [{"a": "1", "b": ""}, {"a": "2", "b": "3"}]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def fill_the_disk(*_: Any, **__: Any) -> None:
        (tmp_path / "page.html.draft").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill_the_disk)
    with pytest.raises(UserError, match=r"cannot write .*page.html: No space left"):
        write_whole("new", path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


# --- TensorBoard -----------------------------------------------------------------------------------------------------


def read_scalars(folder: Path) -> dict[str, list[Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_every_step_and_evaluation(tmp_path: Path) -> None:
    record = make_record("all-reduce(ring)", accuracies=(0.5, 0.9), losses=(1.0, 0.3), hidden=0.001, steps=7)
    write_tensorboard([record, make_empty("nothing")], tmp_path / "board")
    assert sorted(os.listdir(tmp_path / "board")) == ["01-all-reduce-ring", "02-nothing"]
    scalars = read_scalars(tmp_path / "board" / "01-all-reduce-ring")
    first = record.measurements[0]
    for tag, values in {
        "train/loss": first["losses"],
        "step/seconds": first["seconds"],
        "step/hidden": first["hidden"],
        "step/exposed": first["exposed"],
        "test/accuracy": [0.5, 0.9],
        "test/loss": [1.0, 0.3],
    }.items():
        assert [event.value for event in scalars[tag]] == pytest.approx(values)
    assert [event.step for event in scalars["train/loss"]] == list(range(1, 8))
    assert [event.step for event in scalars["test/loss"]] == [entry["step"] for entry in record.evaluations]
    begun = datetime.fromisoformat(record.begun).timestamp()
    assert scalars["train/loss"][-1].wall_time == pytest.approx(begun + record.train_seconds)


def test_runs_that_are_there_are_not_touched(tmp_path: Path) -> None:
    write_tensorboard([make_record(steps=1)], tmp_path)
    before = os.listdir(tmp_path / "01-ddp")
    with pytest.raises(UserError, match="has a run 01-ddp already"):
        write_tensorboard([make_record(steps=1)], tmp_path)
    assert os.listdir(tmp_path / "01-ddp") == before


def test_nothing_is_left_of_a_board_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = export._write_scalars

    def fail_at_the_second(record: Record, writer: Any) -> None:
        if record.name == "ring":
            raise OSError(28, "No space left on device")
        write(record, writer)

    monkeypatch.setattr(export, "_write_scalars", fail_at_the_second)
    with pytest.raises(UserError, match="No space left"):
        write_tensorboard([make_record(steps=1), make_record("ring")], tmp_path)
    assert os.listdir(tmp_path) == []


def test_without_the_package_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r'needs the package tensorboard: pip install "tutti-train\[tensorboard\]"'):
        write_tensorboard([make_record()], tmp_path / "board")
    assert not (tmp_path / "board").exists()
