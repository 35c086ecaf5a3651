"""The backend's own operations (gloo, nccl, mpi) as ways to average: what people use first.

    all-reduce         one call                                      2(n-1)/n * S per worker
    reduce-broadcast   reduce to worker 0, broadcast from it         total 2(n-1) * S
    all-gather         everybody's buffer everywhere, combined there (n-1) * S per worker
    gather-scatter     gather at worker 0, combine, scatter back     (n-1) * S each way at worker 0

The other operations are one call each. Where their pieces are not equally long, they are padded on the way. Rounds and
bytes are the backend's affair: the figures are those of the usual algorithms, and reports call them `formula`. On wires
without a backend (threads) the operations are the comm's own and the bytes are metered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tutti.collectives.base import NOTHING, OPERATIONS, Collective, Combine, Cost, add_up, check_divides, pieces
from tutti.comm.base import Comm


@dataclass
class Native(Collective):
    by: Literal["all-reduce", "reduce-broadcast", "all-gather", "gather-scatter"] = "all-reduce"

    operations: ClassVar[tuple[str, ...]] = OPERATIONS
    by_backend: ClassVar[bool] = True

    @property
    def meets(self) -> bool:  # type: ignore[override]
        return self.by in ("all-gather", "gather-scatter")

    def prepare(self, comm: Comm) -> None:
        _ = comm.native  # made now, where all workers come together

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        backend = comm.native
        if self.by == "all-reduce":
            backend.all_reduce(buffer, tag=tag)
        elif self.by == "reduce-broadcast":
            backend.reduce(buffer, tag=tag)
            backend.broadcast(buffer, tag=tag)
        elif self.by == "all-gather":
            rows = buffer.new_empty((comm.size, buffer.numel()))
            backend.all_gather(buffer, rows, tag=tag)
            buffer.copy_(combine(rows))
        else:
            self._gather_scatter(backend, buffer, tag, combine)

    def _gather_scatter(self, backend: Comm, buffer: Tensor, tag: str, combine: Combine) -> None:
        rows = buffer.new_empty((backend.size, buffer.numel())) if backend.rank == 0 else None
        backend.gather(buffer, rows, tag=tag)
        results = combine(rows).expand(backend.size, -1) if rows is not None else None
        backend.scatter(buffer, results, tag=tag)

    def reduce(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        comm.native.reduce(buffer, root, tag)

    def broadcast(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        comm.native.broadcast(buffer, root, tag)

    def reduce_scatter(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        rows = _as_rows(buffer, comm.size)
        mine = torch.empty_like(rows[0])
        comm.native.reduce_scatter(rows, mine, tag)
        _take_row(buffer, mine, comm)

    def all_gather(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        rows = _as_rows(buffer, comm.size)
        comm.native.all_gather(rows[comm.rank].clone(), rows, tag)
        _take_rows(buffer, rows)

    def gather(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        rows = _as_rows(buffer, comm.size)
        comm.native.gather(rows[comm.rank].clone(), rows if comm.rank == root else None, root, tag)
        _take_rows(buffer, rows)

    def scatter(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        rows = _as_rows(buffer, comm.size)
        mine = torch.empty_like(rows[0])
        comm.native.scatter(mine, rows if comm.rank == root else None, root, tag)
        _take_row(buffer, mine, comm)

    def all_to_all(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        check_divides(buffer, comm.size)
        rows = _as_rows(buffer, comm.size)
        landing = torch.empty_like(rows)
        comm.native.all_to_all(rows, landing, tag)
        rows.copy_(landing)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if size == 1:
            return NOTHING
        others = size - 1
        if operation == "all-reduce":
            return self._cost_of_all_reduce(size, nbytes)
        if operation in ("reduce", "broadcast"):
            return Cost(others, others * nbytes, others * nbytes, others * nbytes)
        each = others / size * nbytes
        return Cost(others, each, each if operation in ("gather", "scatter") else size * each, each)

    def _cost_of_all_reduce(self, size: int, nbytes: int) -> Cost:
        others = size - 1
        if self.by == "all-reduce":
            each = 2 * others / size * nbytes
            return Cost(2 * others, each, size * each, each)
        each = others * nbytes
        if self.by == "all-gather":
            return Cost(others, each, size * each, each)
        return Cost(2 * others, each, 2 * each, 2 * each)


def _as_rows(buffer: Tensor, size: int) -> Tensor:
    """The pieces as rows: the buffer itself where they are equally long, else a copy with room behind the shorter."""
    length, longer = divmod(buffer.numel(), size)
    if longer == 0:
        return buffer.view(size, length)
    rows = buffer.new_zeros((size, length + 1))
    for row, piece in zip(rows, pieces(buffer, size), strict=True):
        row[: piece.numel()].copy_(piece)
    return rows


def _take_rows(buffer: Tensor, rows: Tensor) -> None:
    if rows.numel() != buffer.numel():
        for row, piece in zip(rows, pieces(buffer, len(rows)), strict=True):
            piece.copy_(row[: piece.numel()])


def _take_row(buffer: Tensor, row: Tensor, comm: Comm) -> None:
    piece = pieces(buffer, comm.size)[comm.rank]
    piece.copy_(row[: piece.numel()])
