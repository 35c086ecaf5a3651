"""Ways through a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from tutti.errors import UserError
from tutti.spec import parse
from tutti.topologies.base import Topology, find_parents, find_unreached, is_connected, receives


@dataclass
class Arrow(Topology):
    """Everybody sends to the next one; the last to nobody."""

    directed: ClassVar[bool] = True

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return [rank + 1] if rank + 1 < size else []


@dataclass
class Pieces(Topology):
    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return [rank ^ 1]


def test_who_sends_to_a_worker() -> None:
    assert [receives(Arrow(), rank, 3) for rank in range(3)] == [[], [0], [1]]
    assert receives(parse("ring", Topology), 0, 5) == [1, 4]


def test_connected() -> None:
    assert is_connected([[]])
    assert is_connected([[1], [0, 2], [1]])
    assert not is_connected([[1], [0], []])
    assert find_unreached([[1], [0, 2], [1]]) is None
    assert find_unreached([[1], [0], [3], [2]]) == 2


def test_parents_lead_to_the_root_by_the_shortest_ways() -> None:
    assert find_parents(parse("ring", Topology), 6) == [-1, 0, 1, 2, 5, 0]
    assert find_parents(parse("chain", Topology), 3) == [-1, 0, 1]


def test_no_tree_where_links_are_one_way_or_somebody_is_apart() -> None:
    with pytest.raises(UserError, match="holds no tree"):
        find_parents(Arrow(), 3)
    with pytest.raises(UserError, match="does not connect all of 4 workers"):
        find_parents(Pieces(), 4)


def test_a_size_that_does_not_work_is_said_before_a_tree_is_looked_for() -> None:
    with pytest.raises(UserError, match="power of two"):
        find_parents(parse("hypercube", Topology), 6)
