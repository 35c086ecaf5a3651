"""Direct: everybody sends to everybody at once, in one round or two, and no byte goes further than it must.

    all-reduce       rounds 2, bytes per worker and direction 2(n-1)/n * S, total 2(n-1) * S
                     a reduce-scatter, then an all-gather: each worker adds up one piece and sends it to all
    reduce           a reduce-scatter, then a gather: 2(n-1)/n * S on the root's link
    broadcast        a scatter, then an all-gather: 2(n-1)/n * S on the root's link
    reduce-scatter, all-gather, all-to-all
                     one round, (n-1)/n * S per worker and direction
    gather, scatter  one round, (n-1)/n * S on the root's link

The bytes of the ring in two rounds, over n(n-1) connections: the best there is where every worker can talk to every
other at full speed. All pieces i meet at worker i and are added in the order of the workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tutti.collectives.base import NOTHING, OPERATIONS, Collective, Combine, Cost, add_up, check_divides, pieces
from tutti.comm.base import Comm


@dataclass
class Direct(Collective):
    operations: ClassVar[tuple[str, ...]] = OPERATIONS

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        self.reduce_scatter(comm, buffer, tag)
        self.all_gather(comm, buffer, tag)

    def reduce(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        self.reduce_scatter(comm, buffer, tag)
        self.gather(comm, buffer, tag, root)

    def broadcast(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        self.scatter(comm, buffer, tag, root)
        self.all_gather(comm, buffer, tag)

    def reduce_scatter(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        parts, others = pieces(buffer, comm.size), comm.others()
        mine = parts[comm.rank]
        rows = mine.new_empty((comm.size, mine.numel()))
        landings = rows.unbind()
        landings[comm.rank].copy_(mine)
        comm.exchange([(p, parts[p]) for p in others], [(p, landings[p]) for p in others], tag)
        torch.sum(rows, 0, out=mine)

    def all_gather(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        parts, others = pieces(buffer, comm.size), comm.others()
        mine = parts[comm.rank]
        comm.exchange([(p, mine) for p in others], [(p, parts[p]) for p in others], tag)

    def gather(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        parts = pieces(buffer, comm.size)
        if comm.rank == root:
            comm.exchange([], [(p, parts[p]) for p in comm.others()], tag)
        else:
            comm.exchange([(root, parts[comm.rank])], [], tag)

    def scatter(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        parts = pieces(buffer, comm.size)
        if comm.rank == root:
            comm.exchange([(p, parts[p]) for p in comm.others()], [], tag)
        else:
            comm.exchange([], [(root, parts[comm.rank])], tag)

    def all_to_all(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        check_divides(buffer, comm.size)
        rows = buffer.view(comm.size, buffer.numel() // comm.size)
        landing = torch.empty_like(rows)
        landing[comm.rank].copy_(rows[comm.rank])
        comm.exchange([(p, rows[p]) for p in comm.others()], [(p, landing[p]) for p in comm.others()], tag)
        rows.copy_(landing)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if size == 1:
            return NOTHING
        each = (size - 1) / size * nbytes
        if operation == "all-reduce":
            return Cost(rounds=2, busiest=2 * each, total=2 * size * each, path=2 * each)
        if operation in ("reduce", "broadcast"):
            return Cost(rounds=2, busiest=2 * each, total=(size + 1) * each, path=2 * each)
        if operation in ("gather", "scatter"):
            return Cost(rounds=1, busiest=each, total=each, path=each)
        return Cost(rounds=1, busiest=each, total=size * each, path=each)
