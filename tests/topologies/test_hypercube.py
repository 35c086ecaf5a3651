"""Numbers that differ in one bit."""

from __future__ import annotations

import pytest

from tutti.errors import UserError
from tutti.graph import find_delays
from tutti.topologies.hypercube import Hypercube


def test_a_cube() -> None:
    assert Hypercube().peers(0, 8) == [1, 2, 4]
    assert Hypercube().peers(5, 8) == [1, 4, 7]


def test_delays_count_the_bits_that_differ() -> None:
    delays = find_delays(Hypercube(), 32)
    assert all(delays[i, j] == (i ^ j).bit_count() for i in range(32) for j in range(32))


@pytest.mark.parametrize(("size", "near"), [(3, "2 or 4"), (6, "4 or 8"), (100, "64 or 128")])
def test_other_numbers_are_refused(size: int, near: str) -> None:
    with pytest.raises(UserError, match=f"such as {near}, not {size}"):
        Hypercube().check(size)
