"""Every two workers are linked with probability p, by chance; drawn again until all are connected.

    P(i and j are peers) = p

Without `p` it is 2 ln(n)/n, twice what a random graph needs to hang together. Where 100 draws stay in pieces, the
topology is refused. The draw depends on seed and number of workers alone and is the same on every worker.

Paper: Erdős and Rényi, "On random graphs I" (1959); Gilbert, "Random graphs" (1959).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from tutti.errors import UserError
from tutti.spec import Range
from tutti.topologies.base import Topology, is_connected

_DRAWS = 100


@dataclass
class ErdosRenyi(Topology):
    p: Annotated[float, Range(least=0, most=1)] | None = None
    seed: Annotated[int, Range(least=0)] = 0

    def check(self, workers: int) -> None:
        if not is_connected(_draw(self._chance(workers), self.seed, workers)):
            enough = f"p={min(1, 2 * math.log(workers) / workers):.2g} is usually enough"
            raise UserError(f"'{self}' stays in pieces over {workers} workers in {_DRAWS} draws; {enough}")

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return list(_draw(self._chance(size), self.seed, size)[rank])

    def _chance(self, size: int) -> float:
        return min(1.0, 2 * math.log(size) / size) if self.p is None else self.p


@lru_cache(maxsize=64)
def _draw(chance: float, seed: int, size: int) -> list[list[int]]:
    """Everybody's peers in the first draw that is connected, or in the last one."""
    generator = np.random.default_rng([seed, size])
    for _ in range(_DRAWS):
        upper = np.triu(generator.random((size, size)) < chance, k=1)
        peers = [np.flatnonzero(row).tolist() for row in upper | upper.T]
        if is_connected(peers):
            break
    return peers
