"""Star: everybody sends to one worker, which combines and sends the result back.

The parameter server's shape, also called gather and scatter. Whole contributions meet at the root, so any
aggregator works; the root's link carries everything.

    all-reduce       rounds 2, bytes on the root's link (n-1) * S in each direction, total 2(n-1) * S
    reduce-scatter   whole buffers to the root, worker i's piece of the sum back
    all-gather       pieces to the root, the whole buffer back
    reduce, broadcast, gather, scatter
                     one round, to or from the root that they name

Paper: Li et al., "Scaling distributed machine learning with the parameter server" (2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from tutti.collectives.base import NOTHING, Collective, Combine, Cost, add_up, pieces
from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.spec import Range


@dataclass
class Star(Collective):
    root: Annotated[int, Range(least=0)] = 0

    meets: ClassVar[bool] = True
    operations: ClassVar[tuple[str, ...]] = (
        "all-reduce",
        "reduce",
        "broadcast",
        "reduce-scatter",
        "all-gather",
        "gather",
        "scatter",
    )

    def check(self, workers: int) -> None:
        if self.root >= workers:
            raise UserError(f"root of 'star' must be below the number of workers ({workers}), not {self.root}")

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        _combine_at(self.root, comm, buffer, tag, combine)
        self.broadcast(comm, buffer, tag, self.root)

    def reduce(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        _combine_at(root, comm, buffer, tag, add_up)

    def broadcast(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        if comm.rank == root:
            comm.exchange([(peer, buffer) for peer in comm.others()], [], tag)
        else:
            comm.exchange([], [(root, buffer)], tag)

    def reduce_scatter(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        self.reduce(comm, buffer, tag, self.root)
        self.scatter(comm, buffer, tag, self.root)

    def all_gather(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        self.gather(comm, buffer, tag, self.root)
        self.broadcast(comm, buffer, tag, self.root)

    def gather(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        parts = pieces(buffer, comm.size)
        if comm.rank == root:
            comm.exchange([], [(peer, parts[peer]) for peer in comm.others()], tag)
        else:
            comm.exchange([(root, parts[comm.rank])], [], tag)

    def scatter(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        parts = pieces(buffer, comm.size)
        if comm.rank == root:
            comm.exchange([(peer, parts[peer]) for peer in comm.others()], [], tag)
        else:
            comm.exchange([], [(root, parts[comm.rank])], tag)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if operation not in self.operations:
            raise self.lacks(operation)
        if size == 1:
            return NOTHING
        whole = (size - 1) * nbytes  # of everybody's buffer
        shares = whole / size  # of everybody's piece
        if operation in ("reduce", "broadcast"):
            return Cost(rounds=1, busiest=whole, total=whole, path=whole)
        if operation in ("gather", "scatter"):
            return Cost(rounds=1, busiest=shares, total=shares, path=shares)
        both = whole + (whole if operation == "all-reduce" else shares)
        return Cost(rounds=2, busiest=whole, total=both, path=both)


def _combine_at(root: int, comm: Comm, buffer: Tensor, tag: str, combine: Combine) -> None:
    """The root gets a row from every worker."""
    if comm.rank != root:
        comm.exchange([(root, buffer)], [], tag)
        return
    rows = buffer.new_empty((comm.size, buffer.numel()))
    rows[root].copy_(buffer)
    comm.exchange([], [(peer, rows[peer]) for peer in comm.others()], tag)
    buffer.copy_(combine(rows))
