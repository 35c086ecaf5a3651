"""What a record file must be to be read, and which bytes a record speaks of."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from sample_records import make_empty, make_record

from tutti.errors import UserError
from tutti.lab.export import flatten
from tutti.lab.figures import read_figures
from tutti.lab.record import Record


def with_interface(record: Record, sent: list[float]) -> Record:
    rows = [{**m, "interface_bytes_per_step": count} for m, count in zip(record.measurements, sent, strict=True)]
    return dataclasses.replace(record, measurements=rows)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    record = make_record()
    record.save(tmp_path / "a.json")
    assert Record.load(tmp_path / "a.json") == record
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 99}, "is a record of another version of tutti"),
        ({"workers": "four"}, "is no whole record of a run"),
        ({"measurements": [{"seconds": [1.0]}]}, "is no whole record of a run"),
        ({"measurements": [{**make_record().measurements[0], "seconds": ["x", 1.0]}]}, "is no whole record of a run"),
    ],
)
def test_what_is_not_a_record_gets_a_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    make_record().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=sentence):
        Record.load(path)


def test_a_file_that_cannot_be_read_or_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*: No such file or directory"):
        Record.load(tmp_path / "nothing.json")
    (tmp_path / "half.json").write_text('{"format": 1, "na')
    with pytest.raises(UserError, match="is no record of a run: it is not whole, or not JSON"):
        Record.load(tmp_path / "half.json")


# --- workers that differ ----------------------------------------------------------------------------------------------


def test_own_models_and_distance_are_read_where_there_are_any() -> None:
    apart = make_record(own=(0.8, 0.9, 0.7, 0.95), distances=(3.0, 2.0, 0.5))
    assert (apart.own_accuracies, apart.distance) == ([0.8, 0.9, 0.7, 0.95], 0.5)
    assert apart.row()["own_accuracies"] == [0.8, 0.9, 0.7, 0.95]
    assert apart.row()["distance"] == 0.5


@pytest.mark.parametrize("record", [make_record(), make_empty(), make_record(accuracies=())])
def test_equal_workers_and_older_records_have_none(record: Record) -> None:
    assert (record.own_accuracies, record.distance) == ([], None)
    same = dataclasses.replace(record, measurements=[{**m, "own_accuracy": None} for m in record.measurements])
    assert same.own_accuracies == []
    if record.measurements and record.evaluations:
        assert {"own_accuracies", "distance"}.isdisjoint(record.row())


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_what_is_known_only_by_formula_is_read_off_the_interface() -> None:
    record = with_interface(make_record(workers=2, nbytes=1000.0, source="formula"), [1100.0, 1300.0])
    assert (record.bytes_source, record.sent_per_step, record.bytes_per_step) == ("interface", [1100.0, 1300.0], 1200.0)


def test_on_hosts_the_figure_is_the_interfaces_and_payload_has_a_name_of_its_own() -> None:
    """In the table, on the screen, in CSV and JSON: all read the same."""
    record = with_interface(make_record(workers=2, nbytes=1000.0), [1100.0, 1300.0])
    assert (record.bytes_source, record.bytes_per_step, record.payload_per_step) == ("interface", 1200.0, [1000.0] * 2)
    (figures,) = read_figures([record], 20)
    for row in (record.row(), flatten(record)):
        assert (
            (row["bytes_per_step"], row["busiest_bytes_per_step"]) == (figures.nbytes, figures.busiest) == (1200, 1300)
        )
        assert (row["bytes_source"], row["payload_bytes_per_step"]) == (figures.source, 1000.0)


def test_side_by_side_all_bytes_are_counted_in_one_way() -> None:
    ours = with_interface(make_record("ring", workers=2, nbytes=1000.0), [1100.0, 1100.0])
    theirs = with_interface(make_record("torch-ddp", workers=2, nbytes=1000.0, source="formula"), [1050.0, 1050.0])
    assert [(f.nbytes, f.source) for f in read_figures([ours, theirs], 20)] == [
        (1100.0, "interface"),
        (1050.0, "interface"),
    ]


@pytest.mark.parametrize(
    ("loss", "diverged"), [(0.1, False), (2.4, False), (30.0, True), (math.nan, True), (math.inf, True)]
)
def test_a_loss_far_above_that_of_the_first_step_has_diverged(loss: float, diverged: bool) -> None:
    assert make_record(loss=loss).diverged == diverged


def test_a_run_that_was_not_evaluated_has_not_diverged() -> None:
    assert not make_record(accuracies=()).diverged
    assert not dataclasses.replace(make_record(), measurements=[]).diverged


# --- damaged and newer records ----------------------------------------------------------------------------------------


def change(data: Any, place: list[Any], value: Any) -> Any:
    """The same with another value at one place."""
    key, *rest = place
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[key] = change(copy[key], rest, value) if rest else value
    return copy


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        (["measurements", 2, "seconds", 7], "x", "measurements[2].seconds[7] is a text, not a number"),
        (["measurements", 0, "seconds"], [0.1], "measurements[0].hidden has 41 entries for 1 steps"),
        (["measurements", 1, "ends"], None, "measurements[1].ends is null, not a list"),
        (["measurements", 1, "evaluations", 0, "step"], 99, "measurements[1].evaluations[0].step is 99"),
        (["measurements", 0, "evaluations", 0], {}, "measurements[0].evaluations[0].epoch is missing"),
        (["measurements", 3, "samples", 0], 10**400, "measurements[3].samples[0] is too large"),
        (["measurements", 0, "bytes_per_step"], math.nan, "measurements[0].bytes_per_step is not finite"),
        (["measurements", 0, "ends", 0], 1e9, "measurements[0].ends[1] is before the step that it ends"),
        (["measurements"], [{}], "measurements[0].seconds is missing"),
        (["plan"], {}, "plan.task is missing"),
        (["plan", "lr"], "much", "plan.lr is a text, not a number"),
        (["launch"], {"network": {}}, "launch.network.asked is missing"),
        (["versions", "torch"], 2, "versions.torch is a whole number, not a text"),
        (["workers"], 5, "measurements has 4 entries for 5 workers"),
        (["begun"], "yesterday", "begun is 'yesterday', not a date and time"),
    ],
)
def test_the_first_wrong_place_is_named(place: list[Any], value: Any, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    make_record().save(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()), place, value)))
    with pytest.raises(UserError) as caught:
        Record.load(path)
    assert str(caught.value).startswith(f"{path} is no whole record of a run: {fault}")


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    record, path = make_record(), tmp_path / "a.json"
    record.save(path)
    data = change(json.loads(path.read_text()), ["measurements", 0, "power"], [1, 2])
    path.write_text(json.dumps({**data, "colour": "red"}))
    loaded = Record.load(path)
    assert loaded.row() == record.row()
    assert not hasattr(loaded, "colour")


def test_deep_nesting_and_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" * 200_000)
    with pytest.raises(UserError, match="not whole, or not JSON"):
        Record.load(path)
    make_record("ring\x1b[31m").save(path)
    assert Record.load(path).name == r"ring\x1b[31m"


def test_the_network_of_older_records_was_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    make_record().save(path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "launch": {"network": "loopback"}}))
    assert Record.load(path).launch == {"network": {"asked": "loopback"}}
