"""A circle."""

from __future__ import annotations

from tutti.topologies.ring import Ring


def test_left_and_right() -> None:
    assert [Ring().peers(rank, 4) for rank in range(4)] == [[1, 3], [0, 2], [1, 3], [0, 2]]


def test_two_workers_have_one_link() -> None:
    assert [Ring().peers(rank, 2) for rank in range(2)] == [[1], [0]]
