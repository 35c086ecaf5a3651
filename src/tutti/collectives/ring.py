"""Ring all-reduce: reduce-scatter, then all-gather, each worker sending only to its right neighbour.

The buffer is cut into n pieces. In n-1 rounds every worker sends a piece and adds what comes from the left to the one
before it, until worker i holds the sum of piece i; in n-1 more rounds the sums go round.

    all-reduce       rounds 2(n-1), bytes per worker and direction 2(n-1)/n * S, total 2(n-1) * S
    reduce-scatter   worker i sends piece i-1-k and adds piece i-2-k in round k = 0, ..., n-2
    all-gather       worker i sends piece i-k and receives piece i-1-k in round k = 0, ..., n-2
    reduce           from the root's right neighbour round to the root, each adding its own, segment by segment
    broadcast        from the root round to its left neighbour, segment by segment

Long pieces go in segments, each passed on as soon as it has come, so that no link is idle in between.
In reduce and broadcast k segments follow each other along the ring: k+n-2 rounds of S/k each.

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tutti.collectives.base import NOTHING, Collective, Combine, Cost, add_up, check_segment, count_segments, pieces
from tutti.comm.base import Comm, Message, Step
from tutti.spec import Bytes

Swap = Callable[[Sequence[Message], Sequence[Message], str], None]  # adds what comes to what is there, or puts it there


@dataclass
class Ring(Collective):
    segment: Bytes = 2 * 2**20

    operations: ClassVar[tuple[str, ...]] = ("all-reduce", "reduce", "broadcast", "reduce-scatter", "all-gather")

    def __post_init__(self) -> None:
        check_segment(self, self.segment)

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        if comm.size > 1 and buffer.numel() > 0:
            chunks = self._cut(buffer, comm.size)
            comm.stream([*_add_round(comm, chunks), *_pass_round(comm, chunks)], len(chunks[0]), tag)

    def reduce_scatter(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        if comm.size > 1 and buffer.numel() > 0:
            chunks = self._cut(buffer, comm.size)
            comm.stream(_add_round(comm, chunks), len(chunks[0]), tag)

    def all_gather(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        if comm.size > 1 and buffer.numel() > 0:
            chunks = self._cut(buffer, comm.size)
            comm.stream(_pass_round(comm, chunks), len(chunks[0]), tag)

    def reduce(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        if comm.size > 1 and buffer.numel() > 0:
            segments = buffer.tensor_split(count_segments(buffer.nbytes, self.segment))
            _pass_along(comm, comm.accumulate, segments, (root + 1) % comm.size, tag)

    def broadcast(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        if comm.size > 1 and buffer.numel() > 0:
            segments = buffer.tensor_split(count_segments(buffer.nbytes, self.segment))
            _pass_along(comm, comm.exchange, segments, root, tag)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if size == 1:
            return NOTHING
        each = (size - 1) / size * nbytes
        if operation == "all-reduce":
            return Cost(rounds=2 * (size - 1), busiest=2 * each, total=2 * size * each, path=2 * each)
        if operation in ("reduce-scatter", "all-gather"):
            return Cost(rounds=size - 1, busiest=each, total=size * each, path=each)
        if operation in ("reduce", "broadcast"):
            count = count_segments(nbytes, self.segment)
            rounds = count + size - 2
            return Cost(rounds, busiest=nbytes, total=(size - 1) * nbytes, path=rounds / count * nbytes)
        raise self.lacks(operation)

    def _cut(self, buffer: Tensor, size: int) -> list[Sequence[Tensor]]:
        """Every piece in its segments, the first one in as many as any."""
        elements = max(1, self.segment // buffer.element_size())
        return [_segments(piece, elements) for piece in pieces(buffer, size)]


def _segments(piece: Tensor, elements: int) -> Sequence[Tensor]:
    count = piece.numel()
    if count <= elements:
        return (piece,) if count else ()
    return list(piece.split(elements))


def _add_round(comm: Comm, chunks: list[Sequence[Tensor]]) -> list[Step]:
    """Every piece goes once round and grows, until worker i has the sum of piece i."""
    size, rank = comm.size, comm.rank
    turns = [(chunks[(rank - k - 1) % size], chunks[(rank - k - 2) % size]) for k in range(size - 1)]
    return [step for out, into in turns for step in _pass_on(comm, out, into, len(chunks[0]), adds=True)]


def _pass_round(comm: Comm, chunks: list[Sequence[Tensor]]) -> list[Step]:
    """Worker i's piece i goes once round."""
    size, rank = comm.size, comm.rank
    turns = [(chunks[(rank - k) % size], chunks[(rank - k - 1) % size]) for k in range(size - 1)]
    return [step for out, into in turns for step in _pass_on(comm, out, into, len(chunks[0]), adds=False)]


def _pass_on(comm: Comm, out: Sequence[Tensor], into: Sequence[Tensor], count: int, adds: bool) -> Iterator[Step]:
    """Send one piece to the right and take one from the left, in so many steps: what comes goes on as many later."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for k in range(count):
        yield Step((right, out[k]) if k < len(out) else None, (left, into[k]) if k < len(into) else None, adds)


def _pass_along(comm: Comm, swap: Swap, segments: Sequence[Tensor], first: int, tag: str) -> None:
    """Every segment goes from the first worker along the ring to the last; one is sent while the next one comes."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    gives, takes = right != first, comm.rank != first
    for out, target in zip((None, *segments), (*segments, None), strict=True):
        sends = [(right, out)] if gives and out is not None else []
        recvs = [(left, target)] if takes and target is not None else []
        if sends or recvs:
            swap(sends, recvs, tag)
