"""A graph drawn at random among those in which every worker has the same number of peers.

    start: each worker and its nearest ones on a circle
    often: take two links a-b and c-d, and make them a-d and c-b where both are new

Such graphs mix almost as well as any graph of their degree can. Connected ones only; the draw depends on seed and
number of workers alone and is the same on every worker.

Paper: Friedman, "A proof of Alon's second eigenvalue conjecture and related problems" (2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from tutti.errors import UserError
from tutti.spec import Count, Range
from tutti.topologies.base import Topology, is_connected

_SWAPS = 10  # tried per link


@dataclass
class RandomRegular(Topology):
    degree: Count = 4
    seed: Annotated[int, Range(least=0)] = 0

    def check(self, workers: int) -> None:
        if workers == 1:
            return
        if workers <= self.degree:
            raise UserError(f"'{self}' needs more than {self.degree} workers, not {workers}: lower its degree")
        if self.degree == 1 and workers > 2:
            raise UserError(f"'{self}' connects two workers only, not {workers}: take a degree from 2")
        if self.degree % 2 and workers % 2:
            raise UserError(f"'{self}' needs an even number of workers, not {workers}, or an even degree")

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return list(_draw(self.degree, self.seed, size)[rank]) if size > 1 else []


@lru_cache(maxsize=64)
def _draw(degree: int, seed: int, size: int) -> list[list[int]]:
    """Everybody's peers, after enough swaps that the beginning is forgotten, and until all are connected."""
    generator = np.random.default_rng([seed, size])
    links = _circle(degree, size)
    while True:
        _swap(links, generator)
        peers: list[list[int]] = [[] for _ in range(size)]
        for one, other in links:
            peers[one].append(other)
            peers[other].append(one)
        if is_connected(peers):
            return [sorted(each) for each in peers]


def _circle(degree: int, size: int) -> list[tuple[int, int]]:
    links = [(rank, (rank + ahead) % size) for rank in range(size) for ahead in range(1, degree // 2 + 1)]
    return links + [(rank, rank + size // 2) for rank in range(size // 2) if degree % 2]


def _swap(links: list[tuple[int, int]], generator: np.random.Generator) -> None:
    """Exchange the ends of random pairs of links, where that gives neither a loop nor a second link between two."""
    known = {frozenset(link) for link in links}
    draws = generator.integers(len(links), size=(_SWAPS * len(links), 2)).tolist()
    turns = (generator.random(len(draws)) < 0.5).tolist()
    for (first, second), turned in zip(draws, turns, strict=True):
        (a, b), (c, d) = links[first], links[second][::-1] if turned else links[second]
        new = {frozenset((a, d)), frozenset((c, b))}
        if len({a, b, c, d}) == 4 and not new & known:
            known -= {frozenset((a, b)), frozenset((c, d))}
            known |= new
            links[first], links[second] = (a, d), (c, b)
