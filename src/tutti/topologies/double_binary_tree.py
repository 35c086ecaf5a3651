"""Two binary trees, each for half of the buffer: who passes messages on in one of them is a leaf of the other.

    first tree: places 0, ..., n-1 from left to right, inner at the odd ones, as balanced as can be
    second tree: the same, mirrored where n is even, shifted by one place where n is odd

Both trees have height log2 n rounded down, the least a binary tree can have. In one tree half of the workers would only
receive; here each of them passes messages on in the other one, and every link carries half of the buffer.

Paper: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tutti.topologies.base import Topology


@dataclass
class DoubleBinaryTree(Topology):
    parts: ClassVar[int] = 2

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        neighbours = _neighbours(_place_of(rank, size, part), size)
        return sorted(_worker_at(place, size, part) for place in neighbours)

    def root(self, size: int, part: int = 0) -> int:
        return _worker_at(_middle(0, size), size, part)


def _place_of(worker: int, size: int, part: int) -> int:
    if part == 0:
        return worker
    return size - 1 - worker if size % 2 == 0 else (worker - 1) % size


def _worker_at(place: int, size: int, part: int) -> int:
    if part == 0:
        return place
    return size - 1 - place if size % 2 == 0 else (place + 1) % size


def _middle(first: int, end: int) -> int:
    """The top of the places from `first`, which is even, to before `end`: the middle one of the odd places."""
    inner = (end - first) // 2
    return first + inner // 2 * 2 + 1 if inner else first


def _neighbours(place: int, size: int) -> list[int]:
    """The places above and below this one, found on the way down from the top."""
    first, end, above = 0, size, []
    while (top := _middle(first, end)) != place:
        above = [top]
        first, end = (first, top) if place < top else (top + 1, end)
    below = [_middle(*half) for half in ((first, top), (top + 1, end)) if half[0] < half[1]]
    return above + below
