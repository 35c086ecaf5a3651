"""Workers in a circle: each talks to the one on its left and the one on its right.

    peers(i) = i-1, i+1 (mod n),    diameter n/2 rounded down

Two links per worker however many there are, and a spectral gap that shrinks with 1/n².

Paper: Lian et al., "Can decentralized algorithms outperform centralized algorithms? A case study for decentralized
parallel stochastic gradient descent" (2017).
"""

from __future__ import annotations

from dataclasses import dataclass

from tutti.topologies.base import Topology


@dataclass
class Ring(Topology):
    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return sorted({(rank - 1) % size, (rank + 1) % size} - {rank})
