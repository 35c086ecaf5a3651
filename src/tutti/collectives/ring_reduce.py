"""Ring reduce: the sum grows from worker to worker around the ring until it reaches worker 0, then goes round again.

    reduce      1 -> 2 -> ... -> n-1 -> 0, each adding its own
    broadcast   0 -> 1 -> ... -> n-1
    rounds 2(n-1), bytes on the busiest link min(2,n-1) * S, total 2(n-1) * S

What the ring is without its pieces: one worker sends at a time and all others wait, so it takes n times as long as
`ring` over links of the same rate.

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tutti.collectives.base import Collective, Combine, Cost, add_up
from tutti.comm.base import Comm


@dataclass
class RingReduce(Collective):
    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        size, rank = comm.size, comm.rank
        if size == 1 or buffer.numel() == 0:
            return
        left, right = (rank - 1) % size, (rank + 1) % size
        if rank != 1 % size:
            comm.accumulate([], [(left, buffer)], tag)
        if rank != 0:
            comm.exchange([(right, buffer)], [], tag)
            comm.exchange([], [(left, buffer)], tag)
        if rank != size - 1:
            comm.exchange([(right, buffer)], [], tag)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if operation != "all-reduce":
            raise self.lacks(operation)
        one_by_one = 2 * (size - 1)
        return Cost(one_by_one, min(2, size - 1) * nbytes, one_by_one * nbytes, one_by_one * nbytes)
