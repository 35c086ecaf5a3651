"""Links by chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tutti.errors import UserError
from tutti.graph import find_diameter, find_links
from tutti.topologies.erdos_renyi import ErdosRenyi


def test_about_so_many_links_as_p_says() -> None:
    pairs = 64 * 63 / 2
    links = [find_links(ErdosRenyi(0.3, seed), 64).sum() / 2 for seed in range(10)]
    assert np.mean(links) == pytest.approx(0.3 * pairs, abs=4 * math.sqrt(0.21 * pairs / 10))
    assert len(set(links)) > 1


def test_all_or_nothing() -> None:
    assert find_links(ErdosRenyi(1), 6).sum() == 30
    with pytest.raises(UserError, match=r"'erdos-renyi\(0\)' stays in pieces over 6 workers in 100 draws; p=0.6 is"):
        ErdosRenyi(0).check(6)
    ErdosRenyi(0).check(1)


@pytest.mark.parametrize("size", [2, 3, 5, 17, 64, 256])
def test_without_p_it_is_connected(size: int) -> None:
    for seed in range(5):
        assert math.isfinite(find_diameter(ErdosRenyi(seed=seed), size))


def test_a_thin_graph_is_drawn_again_until_it_is_connected() -> None:
    """A third of the links is seldom enough for eight workers: most first draws are in pieces."""
    assert all(math.isfinite(find_diameter(ErdosRenyi(0.3, seed), 8)) for seed in range(20))
