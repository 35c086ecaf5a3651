"""Pairs, drawn anew in every step."""

from __future__ import annotations

from collections import Counter

import pytest

from tutti.topologies.random_pairing import RandomPairing


@pytest.mark.parametrize("size", [2, 3, 8, 9])
def test_everybody_has_one_partner_but_one_of_an_odd_number(size: int) -> None:
    for step in range(20):
        counts = Counter(len(RandomPairing().peers(rank, size, step)) for rank in range(size))
        assert counts[0] == size % 2
        assert counts[1] == size - size % 2


def test_all_partners_come_about_equally_often() -> None:
    partners = Counter(RandomPairing().peers(0, 6, step)[0] for step in range(1000))
    assert set(partners) == {1, 2, 3, 4, 5}
    assert all(150 < count < 250 for count in partners.values())


def test_the_one_left_alone_is_not_always_the_same() -> None:
    alone = Counter(rank for step in range(300) for rank in range(5) if not RandomPairing().peers(rank, 5, step))
    assert all(alone[rank] > 30 for rank in range(5))


def test_seeds_differ() -> None:
    draws = [[RandomPairing(seed).peers(0, 16, step) for step in range(8)] for seed in (0, 1)]
    assert draws[0] != draws[1]
