"""All-gather: everybody's contribution goes to everybody, and each combines for itself.

The most bytes, and any aggregator works, because all contributions meet at every worker. All combine the same rows in
the same order, so all get the same result.

    all-reduce   rounds 1, bytes per worker and direction (n-1) * S
    all-gather   the same with one piece of the buffer per worker: (n-1)/n * S

Buffers above `short` go round the ring instead, n-1 rounds with the same bytes: where all send to all at once, the
messages to one worker are in each other's way. A sum is made block by block while the next block is on its way, in the
same small memory; other combinations see whole contributions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from tutti.collectives.base import NOTHING, Collective, Combine, Cost, add_up, check_segment, count_segments, pieces
from tutti.comm.base import Comm, Step
from tutti.spec import Bytes

_SEGMENTS = 8  # of a block: so many are under way
_BLOCKS = 3  # in memory: one comes in, one is summed, and one may still be waited for by others


@dataclass
class AllGather(Collective):
    short: Bytes = 64 * 2**10
    segment: Bytes = 2**20

    meets: ClassVar[bool] = True
    operations: ClassVar[tuple[str, ...]] = ("all-reduce", "all-gather")

    def __post_init__(self) -> None:
        check_segment(self, self.segment)

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        if comm.size > 1 and buffer.nbytes > self.short:
            self._run_round(comm, buffer, tag, combine)
            return
        rows = buffer.new_empty((comm.size, buffer.numel()))
        rows[comm.rank].copy_(buffer)
        comm.exchange([(p, buffer) for p in comm.others()], [(p, rows[p]) for p in comm.others()], tag)
        buffer.copy_(combine(rows))

    def all_gather(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        parts = pieces(buffer, comm.size)
        comm.exchange([(p, parts[comm.rank]) for p in comm.others()], [(p, parts[p]) for p in comm.others()], tag)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if operation not in self.operations:
            raise self.lacks(operation)
        if size == 1:
            return NOTHING
        rounds = size - 1 if operation == "all-reduce" and nbytes > self.short else 1
        each = (size - 1) * (nbytes if operation == "all-reduce" else nbytes / size)
        return Cost(rounds, busiest=each, total=size * each, path=each)

    def _run_round(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine) -> None:
        count = count_segments(buffer.nbytes, self.segment)
        blocks = buffer.tensor_split(-(-count // _SEGMENTS)) if combine is add_up else (buffer,)
        segments = -(-count // len(blocks))  # of every block, the longer ones first
        rows = buffer.new_empty((min(_BLOCKS, len(blocks)), comm.size, blocks[0].numel()))
        steps = [
            step
            for index, block in enumerate(blocks)
            for step in _pass_round(comm, block, rows[index % _BLOCKS, :, : block.numel()], segments, combine)
        ]
        comm.stream(steps, segments, tag)


def _pass_round(comm: Comm, block: Tensor, rows: Tensor, segments: int, combine: Combine) -> Iterator[Step]:
    """Everybody's block goes once round, segment by segment; then this worker combines what it has got."""
    size, rank = comm.size, comm.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    parts = [(block if owner == rank else rows[owner]).tensor_split(segments) for owner in range(size)]
    turns = [(parts[(rank - k) % size], parts[(rank - k - 1) % size]) for k in range(size - 1)]
    steps = [Step((right, out), (left, into)) for turn in turns for out, into in zip(*turn, strict=True)]
    yield from steps[:-1]
    yield steps[-1]._replace(then=partial(_combine, rows, rank, block, combine))


def _combine(rows: Tensor, rank: int, block: Tensor, combine: Combine) -> None:
    rows[rank].copy_(block)
    if combine is add_up:
        torch.sum(rows, 0, out=block)
    else:
        block.copy_(combine(rows))
