"""Workers at the corners of a cube with log2 n dimensions: each talks to those whose number differs in one bit.

    peers(i) = i xor 2^k,    k < log2 n,    diameter log2 n

Only for 1, 2, 4, 8, ... workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutti.errors import UserError
from tutti.topologies.base import Topology


@dataclass
class Hypercube(Topology):
    def check(self, workers: int) -> None:
        below = 1 << (workers.bit_length() - 1)
        if workers != below:
            raise UserError(
                f"'hypercube' needs a power of two of workers, such as {below} or {2 * below}, not {workers}"
            )

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return sorted(rank ^ (1 << bit) for bit in range((size - 1).bit_length()))
