"""One peer per step: 1 place ahead, in the next step 2, then 4, and so on, and from the beginning again.

    sends(i, t) = i + 2^(t mod L) (mod n),    L = log2 n rounded up

Each worker keeps one half of its own value and takes one half of what comes. Where n is a power of two, L steps give
the exact mean; elsewhere they only come near it.

Paper: Assran et al., "Stochastic gradient push for distributed deep learning" (2019);
Ying et al., "Exponential graph is provably efficient for decentralized deep training" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tutti.topologies.base import Topology


@dataclass
class OnePeerExponential(Topology):
    directed: ClassVar[bool] = True
    changing: ClassVar[bool] = True

    def period(self, size: int) -> int:
        return max(1, (size - 1).bit_length())

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return [(rank + (1 << step % self.period(size))) % size] if size > 1 else []
