"""Rows and columns closed to circles."""

from __future__ import annotations

import pytest

from tutti.errors import UserError
from tutti.spec import parse
from tutti.topologies.base import Topology
from tutti.topologies.ring import Ring
from tutti.topologies.torus import Torus


@pytest.mark.parametrize(
    ("size", "shape"), [(1, (1, 1)), (4, (2, 2)), (12, (3, 4)), (16, (4, 4)), (30, (5, 6)), (22, (2, 11))]
)
def test_as_nearly_square_as_can_be(size: int, shape: tuple[int, int]) -> None:
    assert Torus().shape(size) == shape


def test_peers_in_a_grid_of_three_by_four() -> None:
    assert Torus().peers(5, 12) == [1, 4, 6, 9]
    assert Torus().peers(0, 12) == [1, 3, 4, 8]


@pytest.mark.parametrize("size", [2, 3, 5, 7, 13])
def test_a_prime_number_of_workers_is_a_ring(size: int) -> None:
    assert [Torus().peers(r, size) for r in range(size)] == [Ring().peers(r, size) for r in range(size)]


def test_rows_may_be_chosen() -> None:
    assert Torus(rows=2).shape(12) == (2, 6)
    assert Torus(rows=2).peers(0, 12) == [1, 5, 6]
    assert str(parse("torus(rows=2)", Topology)) == "torus(2)"


def test_rows_must_be_full() -> None:
    with pytest.raises(
        UserError, match=r"12 workers do not fill 5 rows of 'torus\(5\)'; rows may be 1, 2, 3, 4, 6, 12"
    ):
        Torus(rows=5).check(12)
    Torus(rows=5).check(1)
    assert Torus(rows=5).peers(0, 1) == []
