"""A line."""

from __future__ import annotations

from tutti.topologies.chain import Chain


def test_ends_have_one_peer() -> None:
    assert [Chain().peers(rank, 4) for rank in range(4)] == [[1], [0, 2], [1, 3], [2]]
