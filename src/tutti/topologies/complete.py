"""Everybody talks to everybody.

    peers(i) = all but i,    diameter 1

One round of gossip gives the exact mean; every worker sends n-1 messages for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutti.topologies.base import Topology


@dataclass
class Complete(Topology):
    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return [peer for peer in range(size) if peer != rank]
