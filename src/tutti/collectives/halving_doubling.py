"""Halving and doubling: half of the buffer to the other half of the workers, again and again, and all the way back.

Halving is a reduce-scatter: a group splits in two, the pieces of the buffer with it, and partners in the two halves
send each other the pieces that are not theirs any more, until every group is one worker with the sum of its own piece.
Doubling is the same backwards with the sums: an all-gather.

    all-reduce       rounds 2ceil(log2(n)), bytes per worker and direction 2(n-1)/n * S, total 2(n-1) * S
    reduce-scatter   rounds ceil(log2(n)), in round k: about S/2^k between partners
    all-gather       the same rounds backwards

The bytes of the ring in far fewer rounds, where n is 2, 4, 8, ...; rounds and total hold for every n. Where a group is
odd, its first half has one worker more, which has no partner: it hands every worker of the other half that worker's own
piece and gets nothing back. So nobody waits for a round of folding, and no link carries more than 2.2 * S.

Paper: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005);
Rabenseifner, "Optimization of collective reduction operations" (2004).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from tutti.collectives.base import NOTHING, Collective, Combine, Cost, add_up, bounds
from tutti.comm.base import Comm, Message

Span = tuple[int, int, int]  # a peer, and the pieces from the second to before the third number


@dataclass(frozen=True)
class Halving:
    """What one worker does when its group splits; doubling sends what halving takes, and takes what it gives."""

    gives: tuple[Span, ...]
    takes: tuple[Span, ...]


@dataclass
class HalvingDoubling(Collective):
    operations: ClassVar[tuple[str, ...]] = ("all-reduce", "reduce-scatter", "all-gather")

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        self.reduce_scatter(comm, buffer, tag)
        self.all_gather(comm, buffer, tag)

    def reduce_scatter(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        if comm.size == 1 or buffer.numel() == 0:
            return
        edges = bounds(buffer, comm.size)
        for halving in find_halvings(comm.rank, comm.size):
            comm.accumulate(_cut(buffer, edges, halving.gives), _cut(buffer, edges, halving.takes), tag)

    def all_gather(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        if comm.size == 1 or buffer.numel() == 0:
            return
        edges = bounds(buffer, comm.size)
        for halving in reversed(find_halvings(comm.rank, comm.size)):
            comm.exchange(_cut(buffer, edges, halving.takes), _cut(buffer, edges, halving.gives), tag)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if operation not in self.operations:
            raise self.lacks(operation)
        if size == 1:
            return NOTHING
        plans = [find_halvings(rank, size) for rank in range(size)]
        given = [[_count(halving.gives) for halving in plan] for plan in plans]
        taken = [[_count(halving.takes) for halving in plan] for plan in plans]
        rounds = max(len(plan) for plan in plans)
        path = sum(max(row[k] for row in (*given, *taken) if k < len(row)) for k in range(rounds))
        phases, busiest = 1, max(sum(row) for row in (*given, *taken))
        if operation == "all-reduce":  # what one half gives the other takes
            phases, busiest = 2, max(sum(out) + sum(back) for out, back in zip(given, taken, strict=True))
        piece = nbytes / size
        return Cost(phases * rounds, busiest * piece, phases * (size - 1) * nbytes, phases * path * piece)


@lru_cache(maxsize=256)
def find_halvings(rank: int, size: int) -> tuple[Halving, ...]:
    """How the groups around one worker split, until it is alone."""
    halvings, first, end = [], 0, size
    while end - first > 1:
        half = (end - first + 1) // 2
        middle = first + half
        if rank >= middle:
            unpaired = ((middle - 1, rank, rank + 1),) if (end - first) % 2 else ()
            halvings.append(Halving(((rank - half, first, middle),), (*unpaired, (rank - half, middle, end))))
            first = middle
            continue
        if rank + half < end:
            halvings.append(Halving(((rank + half, middle, end),), ((rank + half, first, middle),)))
        else:
            halvings.append(Halving(tuple((peer, peer, peer + 1) for peer in range(middle, end)), ()))
        end = middle
    return tuple(halvings)


def _cut(buffer: Tensor, edges: list[int], spans: Iterable[Span]) -> list[Message]:
    return [(peer, buffer[edges[first] : edges[end]]) for peer, first, end in spans]


def _count(spans: tuple[Span, ...]) -> int:
    return sum(end - first for _, first, end in spans)
