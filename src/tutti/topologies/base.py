"""The contract of a topology: whom a worker sends to.

Members have one method, `peers`; everything else is derived from it, here and in graph.py. A topology may have several
`parts`, graphs side by side of which each carries its own part of a buffer, and may change from step to step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tutti.errors import UserError
from tutti.spec import Member


@dataclass
class Topology(Member):
    axis: ClassVar[str] = "topologies"
    noun: ClassVar[str] = "topology"
    parts: ClassVar[int] = 1
    directed: ClassVar[bool] = False  # a worker may send to one that does not send back
    changing: ClassVar[bool] = False  # other peers from step to step

    @abstractmethod
    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        """Whom this worker sends to, each once and in rising order."""

    def root(self, size: int, part: int = 0) -> int:
        """Where a tree begins."""
        return 0

    def period(self, size: int) -> int:
        """After how many steps the same peers come again."""
        return 1


def receives(topology: Topology, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
    """Who sends to this worker."""
    if not topology.directed:
        return topology.peers(rank, size, step, part)
    return [peer for peer in range(size) if rank in topology.peers(peer, size, step, part)]


def is_connected(peers: Sequence[Sequence[int]]) -> bool:
    """Whether everybody can be reached from worker 0."""
    return find_unreached(peers) is None


def find_unreached(peers: Sequence[Sequence[int]]) -> int | None:
    """The first who cannot be reached from worker 0."""
    reached = _find_ways(peers, 0)
    return next((worker for worker in range(len(peers)) if worker not in reached), None)


def find_parents(topology: Topology, size: int, part: int = 0) -> list[int]:
    """Every worker's next one on the way to the root, -1 for the root itself; the shortest ways, lowest ranks first."""
    topology.check(size)
    if topology.directed or topology.changing:
        raise UserError(
            f"'{topology}' holds no tree, since its links are one-way or change; take chain, binary-tree or ring"
        )
    parents = _find_ways([topology.peers(rank, size, part=part) for rank in range(size)], topology.root(size, part))
    if len(parents) < size:
        raise UserError(f"'{topology}' does not connect all of {size} workers; take another topology")
    return [parents[rank] for rank in range(size)]


def _find_ways(peers: Sequence[Sequence[int]], root: int) -> dict[int, int]:
    """Where everybody is first reached from, going out from the root level by level."""
    parents = {root: -1}
    reached = deque([root])
    while reached:
        worker = reached.popleft()
        for peer in peers[worker]:
            if peer not in parents:
                parents[peer] = worker
                reached.append(peer)
    return parents
