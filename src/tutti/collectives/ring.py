"""Ring all-reduce: scatter-reduce, then all-gather, each worker sending only to its right neighbour.

The buffer is cut into n chunks. In n-1 rounds worker i sends chunk i-k and adds what comes from the left to chunk
i-k-1; then worker i holds the sum of chunk i+1, and in n-1 more rounds the sums go round.

    rounds 2(n-1), bytes per worker and direction 2(n-1)/n * S

Long chunks go in segments, so that what has come is added while it is still in the cache and the next is on its way.

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from tutti.collectives.base import Collective, Combine, Cost, add_up
from tutti.comm.base import Comm
from tutti.spec import Bytes


@dataclass
class Ring(Collective):
    segment: Bytes = 2 * 2**20

    def __post_init__(self) -> None:
        if self.segment < 8:
            raise ValueError(f"segment of 'ring' must be at least 8 bytes, not {self.segment}")

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        size, rank = comm.size, comm.rank
        if size == 1 or buffer.numel() == 0:
            return
        elements = max(1, self.segment // buffer.element_size())
        chunks = [_segments(chunk, elements) for chunk in buffer.tensor_split(size)]
        scratch = torch.empty_like(chunks[0][0])
        for k in range(size - 1):
            _pass_on(comm, chunks[(rank - k) % size], chunks[(rank - k - 1) % size], scratch, tag)
        for k in range(size - 1):
            _pass_on(comm, chunks[(rank - k + 1) % size], chunks[(rank - k) % size], None, tag)

    def cost(self, size: int, nbytes: int) -> Cost:
        each = 2 * (size - 1) / size * nbytes
        return Cost(rounds=2 * (size - 1), busiest=each, total=size * each)


def _segments(chunk: Tensor, elements: int) -> Sequence[Tensor]:
    count = chunk.numel()
    if count <= elements:
        return (chunk,) if count else ()
    return list(chunk.split(elements))


def _pass_on(
    comm: Comm, outgoing: Sequence[Tensor], incoming: Sequence[Tensor], scratch: Tensor | None, tag: str
) -> None:
    """Send one chunk to the right and take one from the left: added to what is there, or in its place."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for out, target in zip_longest(outgoing, incoming):
        sends = [(right, out)] if out is not None else []
        if target is None:
            comm.exchange(sends, [], tag)
        elif scratch is None:
            comm.exchange(sends, [(left, target)], tag)
        else:
            landing = scratch if scratch.numel() == target.numel() else scratch[: target.numel()]
            comm.exchange(sends, [(left, landing)], tag)
            target.add_(landing)
