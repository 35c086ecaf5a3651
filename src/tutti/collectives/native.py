"""The backend's own operations (gloo, nccl, mpi) as ways to average: what people use first.

    all-reduce         one call                                      2(n-1)/n * S per worker
    reduce-broadcast   reduce to worker 0, broadcast from it         total 2(n-1) * S
    all-gather         everybody's buffer everywhere, combined there (n-1) * S per worker
    gather-scatter     gather at worker 0, combine, scatter back     (n-1) * S each way at worker 0

Rounds and bytes are the backend's affair: the figures are those of the usual algorithms, and reports call them
`formula`. On wires without a backend (threads) the operations are the comm's own and the bytes are metered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from tutti.collectives.base import Collective, Combine, Cost, add_up
from tutti.comm.base import Comm


@dataclass
class Native(Collective):
    by: Literal["all-reduce", "reduce-broadcast", "all-gather", "gather-scatter"] = "all-reduce"

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

    def cost(self, size: int, nbytes: int) -> Cost:
        others = size - 1
        if self.by == "all-reduce":
            each = 2 * others / size * nbytes
            return Cost(rounds=2 * others, busiest=each, total=size * each)
        if self.by == "all-gather":
            return Cost(rounds=others, busiest=others * nbytes, total=size * others * nbytes)
        return Cost(rounds=2 * others, busiest=others * nbytes, total=2 * others * nbytes)
