"""Workers in a line: each talks to the one before and the one behind it.

    peers(i) = i-1, i+1,    diameter n-1

The fewest links there can be, and the longest way: averages spread slowest here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutti.topologies.base import Topology


@dataclass
class Chain(Topology):
    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return [peer for peer in (rank - 1, rank + 1) if 0 <= peer < size]
