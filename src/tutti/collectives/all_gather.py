"""All-gather: everybody sends everything to everybody, and each combines for itself.

One round and n-1 times the bytes: the least latency, and any aggregator works, because all contributions meet at every
worker. All combine the same rows in the same order, so all get the same result.

    all-reduce   rounds 1, bytes per worker and direction (n-1) * S
    all-gather   the same with one piece of the buffer per worker: (n-1)/n * S
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tutti.collectives.base import NOTHING, Collective, Combine, Cost, add_up, pieces
from tutti.comm.base import Comm

_SEGMENT = 2 * 2**20  # bytes


@dataclass
class AllGather(Collective):
    meets: ClassVar[bool] = True
    operations: ClassVar[tuple[str, ...]] = ("all-reduce", "all-gather")

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        """A sum is made segment by segment in the same small memory; others may want to see whole contributions."""
        segment = min(buffer.numel(), _SEGMENT // buffer.element_size()) if combine is add_up else buffer.numel()
        rows = buffer.new_empty((comm.size, segment))
        for part in buffer.split(segment) if segment else ():
            landings = rows[:, : part.numel()] if part.numel() == segment else rows.new_empty((comm.size, part.numel()))
            landings[comm.rank].copy_(part)
            comm.exchange([(p, part) for p in comm.others()], [(p, landings[p]) for p in comm.others()], tag)
            part.copy_(combine(landings))

    def all_gather(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        parts = pieces(buffer, comm.size)
        comm.exchange([(p, parts[comm.rank]) for p in comm.others()], [(p, parts[p]) for p in comm.others()], tag)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if operation not in self.operations:
            raise self.lacks(operation)
        if size == 1:
            return NOTHING
        each = (size - 1) * (nbytes if operation == "all-reduce" else nbytes / size)
        return Cost(rounds=1, busiest=each, total=size * each, path=each)
