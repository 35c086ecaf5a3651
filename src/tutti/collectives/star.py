"""Star: everybody sends to one worker, which combines and sends the result back.

The parameter server's shape, also called gather and scatter. Whole contributions meet at the root, so any
aggregator works; the root's link carries everything.

    rounds 2, bytes on the root's link (n-1) * S in each direction, total 2(n-1) * S

Paper: Li et al., "Scaling distributed machine learning with the parameter server" (2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from tutti.collectives.base import Collective, Combine, Cost, add_up
from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.spec import Range


@dataclass
class Star(Collective):
    root: Annotated[int, Range(least=0)] = 0

    meets: ClassVar[bool] = True

    def prepare(self, comm: Comm) -> None:
        if self.root >= comm.size:
            raise UserError(f"root of 'star' must be below the number of workers ({comm.size}), not {self.root}")

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        if comm.rank != self.root:
            comm.exchange([(self.root, buffer)], [], tag)
            comm.exchange([], [(self.root, buffer)], tag)
            return
        rows = buffer.new_empty((comm.size, buffer.numel()))
        rows[self.root].copy_(buffer)
        comm.exchange([], [(peer, rows[peer]) for peer in comm.others()], tag)
        buffer.copy_(combine(rows))
        comm.exchange([(peer, buffer) for peer in comm.others()], [], tag)

    def cost(self, size: int, nbytes: int) -> Cost:
        return Cost(rounds=2 if size > 1 else 0, busiest=(size - 1) * nbytes, total=2 * (size - 1) * nbytes)
