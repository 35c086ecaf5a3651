"""What stays on disk: every row with all its samples, and the machine."""

from __future__ import annotations

import json
from pathlib import Path

from sample_rows import make_row

from tutti.lab.bench.record import Bench, describe_conditions
from tutti.networks.base import Network
from tutti.spec import parse


def test_rows_and_samples_are_saved_whole(tmp_path: Path) -> None:
    bench = Bench([make_row("ring"), make_row("star")], [[1.0, 2.0], [3.0]], [{"workers": 4, "asked": "loopback"}])
    bench.save(tmp_path / "bench.json")
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [(row["route"], row["times"]) for row in record["rows"]] == [("ring", [1.0, 2.0]), ("star", [3.0])]
    assert record["networks"] == [{"workers": 4, "asked": "loopback"}]
    assert record["machine"]["cores"] >= 1
    assert "torch" in record["versions"]
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_conditions_name_network_wire_and_machine_and_explain_the_floor() -> None:
    first, second = describe_conditions([make_row(), make_row()], parse("loopback", Network)).split("\n")
    assert first.startswith("loopback · wire tcp · ")
    assert "torch" in first
    assert second.startswith("floor: ")
