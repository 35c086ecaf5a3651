"""Everybody talks to worker 0, and nobody to anybody else.

    peers(0) = 1, ..., n-1,    peers(i) = 0,    diameter 2

Two hops between any two workers, but the centre carries every message.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutti.topologies.base import Topology


@dataclass
class Star(Topology):
    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return list(range(1, size)) if rank == 0 else [0]
