"""The same number of peers for everybody, otherwise by chance."""

from __future__ import annotations

import math

import pytest

from tutti.errors import UserError
from tutti.graph import find_diameter, find_links, find_spectral_gap
from tutti.topologies.random_regular import RandomRegular


@pytest.mark.parametrize(
    ("degree", "size"), [(1, 2), (2, 9), (3, 4), (3, 10), (4, 5), (4, 33), (7, 8), (9, 64), (20, 41)]
)
def test_every_degree_is_kept_and_all_are_connected(degree: int, size: int) -> None:
    for seed in range(3):
        topology = RandomRegular(degree, seed)
        assert find_links(topology, size).sum(axis=1).tolist() == [degree] * size
        assert math.isfinite(find_diameter(topology, size))


def test_seeds_give_other_graphs() -> None:
    assert len({find_links(RandomRegular(3, seed), 20).tobytes() for seed in range(10)}) == 10


def test_all_links_are_about_equally_likely() -> None:
    """The circle that swapping begins with is forgotten."""
    counts = sum(find_links(RandomRegular(3, seed), 10).astype(int) for seed in range(300))
    off_diagonal = [counts[i, j] for i in range(10) for j in range(10) if i != j]
    assert min(off_diagonal) > 60
    assert max(off_diagonal) < 140


def test_it_mixes_far_better_than_the_circle_it_begins_with() -> None:
    """Friedman: the second eigenvalue of the links is near 2 sqrt(degree - 1)."""
    degree, bound = 4, 2 * math.sqrt(3)
    gap = find_spectral_gap(RandomRegular(degree), 256)[0]
    assert gap == pytest.approx(1 - (1 + bound) / (degree + 1), abs=0.03)


@pytest.mark.parametrize(
    ("degree", "size", "sentence"),
    [
        (4, 4, "needs more than 4 workers, not 4"),
        (3, 7, "needs an even number of workers, not 7, or an even degree"),
        (1, 6, "connects two workers only, not 6"),
    ],
)
def test_what_there_is_not(degree: int, size: int, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        RandomRegular(degree).check(size)
