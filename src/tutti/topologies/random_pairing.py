"""In every step the workers are paired anew, at random; an odd number leaves one alone in each step.

    peers(i, t) = its partner in a random order drawn from seed and t

One message per step and worker, and the squared distance to the mean is still halved by about every step. The order is
the same on every worker. It never begins again: figures that need a period are taken over about 4 log2 n steps.

Paper: Boyd et al., "Randomized gossip algorithms" (2006).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from tutti.spec import Range
from tutti.topologies.base import Topology


@dataclass
class RandomPairing(Topology):
    seed: Annotated[int, Range(least=0)] = 0

    changing: ClassVar[bool] = True

    def period(self, size: int) -> int:
        return 4 * size.bit_length()

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        order = _draw_order(self.seed, step, size)
        place = order.index(rank)
        partner = place ^ 1  # the two at places 0 and 1, at 2 and 3, ...
        return [order[partner]] if partner < size else []


@lru_cache(maxsize=64)
def _draw_order(seed: int, step: int, size: int) -> list[int]:
    return [int(worker) for worker in np.random.default_rng([seed, step]).permutation(size)]
