"""All-gather: everybody sends everything to everybody, and each combines for itself.

One round and n-1 times the bytes: the least latency, and any aggregator works, because all contributions meet at every
worker. All combine the same rows in the same order, so all get the same result.

    rounds 1, bytes per worker and direction (n-1) * S
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tutti.collectives.base import Collective, Combine, Cost, add_up
from tutti.comm.base import Comm


@dataclass
class AllGather(Collective):
    meets: ClassVar[bool] = True

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        rows = buffer.new_empty((comm.size, buffer.numel()))
        rows[comm.rank].copy_(buffer)
        comm.exchange([(p, buffer) for p in comm.others()], [(p, rows[p]) for p in comm.others()], tag)
        buffer.copy_(combine(rows))

    def cost(self, size: int, nbytes: int) -> Cost:
        each = (size - 1) * nbytes
        return Cost(rounds=1 if size > 1 else 0, busiest=each, total=size * each)
