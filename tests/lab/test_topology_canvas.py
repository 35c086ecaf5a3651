"""Drawings in letters."""

from __future__ import annotations

import re

import pytest
from catalogue import every

from tutti.errors import UserError
from tutti.lab.topology_canvas import draw_text
from tutti.spec import parse
from tutti.topologies.base import Topology


def draw(spec: str, workers: int, part: int = 0) -> str:
    return draw_text(parse(spec, Topology), workers, part=part)


def test_a_chain_is_a_line() -> None:
    assert draw("chain", 4) == "0 ── 1 ── 2 ── 3"
    assert draw("chain", 1) == "0"


def test_a_long_chain_goes_on_in_the_next_line() -> None:
    lines = draw("chain", 30).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) < 80
    assert [line.endswith(" ──") for line in lines] == [True, True, False]
    assert [int(n) for n in re.findall(r"\d+", "".join(lines))] == list(range(30))


def test_a_tree_has_branches() -> None:
    assert draw("binary-tree", 6).splitlines() == [
        "0",
        "├── 1",
        "│   ├── 3",
        "│   └── 4",
        "└── 2",
        "    └── 5",
    ]


def test_both_trees() -> None:
    assert draw("double-binary-tree", 3, part=0).splitlines() == ["1", "├── 0", "└── 2"]
    assert draw("double-binary-tree", 3, part=1).splitlines() == ["2", "├── 0", "└── 1"]


def test_a_ring_of_four_as_it_is_drawn() -> None:
    """Four numbers at the ends of a cross, lines of dots between neighbours only."""
    lines = draw("ring", 4).splitlines()
    assert lines[0].strip() == "0"
    assert lines[-1].strip() == "2"
    middle = next(line for line in lines if "3" in line)
    assert re.fullmatch(r" ?3 +1", middle)


def test_a_torus_shows_that_its_rows_go_on() -> None:
    lines = draw("torus", 12).splitlines()
    first = next(line for line in lines if " 0 " in line)
    assert re.fullmatch(r"[⠒]+ 0 ⠒+ 1 ⠒+ 2 ⠒+ 3 [⠒⠂]+", first)
    assert lines[0].split() == ["⡀"] * 4


@pytest.mark.parametrize("spec", every(Topology))
@pytest.mark.parametrize("workers", [2, 5, 16, 32])
def test_everybody_is_there_once(spec: str, workers: int) -> None:
    try:
        parse(spec, Topology).check(workers)
    except UserError:
        workers = 2 if spec == "edge-list" else 8
    text = draw(spec, workers)
    assert sorted(int(n) for n in re.findall(r"\d+", text)) == list(range(workers))
    assert max(map(len, text.splitlines())) <= 80


def test_many_workers_are_a_table_of_marks() -> None:
    head, *rows = draw("ring", 40).splitlines()
    assert head.split() == ["0", "10", "20", "30"]
    assert len(rows) == 40
    assert rows[0] == " 0  ·●" + "·" * 37 + "●"
    assert sum(row.count("●") for row in rows) == 80


def test_too_many_are_sent_to_a_picture() -> None:
    assert draw("ring", 73) == "73 workers are too many to draw here; --png FILE draws them"
