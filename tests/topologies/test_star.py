"""One in the middle."""

from __future__ import annotations

from tutti.topologies.star import Star


def test_all_talk_to_worker_0() -> None:
    assert [Star().peers(rank, 4) for rank in range(4)] == [[1, 2, 3], [0], [0], [0]]
