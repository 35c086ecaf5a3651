"""benchmarks/loops.py: some patterns of its table over real processes, and that the table can tell right from wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launching import python

ROOT = Path(__file__).parent.parent
WORK = ("own-model", "gan-two-optimizers", "added-group", "unfrozen", "data-replaced", "bfloat16-parameters", "joined")
REFUSE = ("update-bucket-clip", "other-models-optimizer", "ddp-wrapped")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    page = tmp_path_factory.mktemp("loops") / "loops.md"
    command = [str(ROOT / "benchmarks" / "loops.py"), "--methods", "torch-ddp", "ddp", "d-psgd", "--out", str(page)]
    done = python(*command, "--only", *WORK, *REFUSE, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stdout, done.stdout
    assert "Training loops that people already have" in page.read_text()
    found: dict[str, Any] = json.loads(page.with_suffix(".json").read_text())["table"]
    return found


@pytest.mark.parametrize("name", WORK)
def test_a_loop_works(table: dict[str, Any], name: str) -> None:
    assert {table[name][method]["word"] for method in ("ddp", "d-psgd")} == {"equal"}, table[name]


@pytest.mark.parametrize("name", REFUSE)
def test_a_loop_is_refused_in_a_sentence(table: dict[str, Any], name: str) -> None:
    assert {table[name][method]["word"] for method in ("ddp", "d-psgd")} == {"refused"}, table[name]


def test_a_loop_that_never_exchanges_is_found_out(table: dict[str, Any]) -> None:
    """torch's DDP with the inner model called: its workers train alone."""
    assert table["own-model"]["torch-ddp"]["word"] == "wrong"
