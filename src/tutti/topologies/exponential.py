"""Each worker sends to those 1, 2, 4, 8, ... places ahead, and takes from those as far behind.

    sends(i) = i + 2^k (mod n),    k < log2 n rounded up

Each of them counts 1/(ceil(log2 n) + 1): as many links as a hypercube has, for any number of workers, and a spectral
gap that shrinks with 1/log2 n only.

Paper: Ying et al., "Exponential graph is provably efficient for decentralized deep training" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tutti.topologies.base import Topology


@dataclass
class Exponential(Topology):
    directed: ClassVar[bool] = True

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return sorted((rank + (1 << k)) % size for k in range((size - 1).bit_length()))
