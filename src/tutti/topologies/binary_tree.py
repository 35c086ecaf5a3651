"""Worker 0 at the top, two children below every worker, level by level.

    children(i) = 2i+1, 2i+2,    parent(i) = (i-1)/2 rounded down

Few hops between any two workers, about 2 log2 n, with three links at most; half of the workers are leaves and send half
as much as the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutti.topologies.base import Topology


@dataclass
class BinaryTree(Topology):
    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        parent = [(rank - 1) // 2] if rank > 0 else []
        return parent + [child for child in (2 * rank + 1, 2 * rank + 2) if child < size]
