"""All workers combine their buffers over one route; all end with the same one.

    linear aggregator:  x <- sum(w_i x_i) [ / sum(w_i) ]     on any route, w_i in the buffer's last element
    any aggregator:     x <- combine(x_1 ... x_n)            on routes where whole contributions meet

Bytes and rounds are the route's, for the buffer with its spare elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tutti.aggregators.base import Aggregator
from tutti.collectives.base import Collective
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.spec import part


@dataclass
class AllReduce(Exchange):
    route: Collective = part(Collective, "ring")
    combine: Aggregator = part(Aggregator, "weighted-mean")

    def prepare(self) -> None:
        if not self.combine.linear and not self.route.meets:
            raise UserError(
                f"'{self.combine}' needs whole contributions, and on '{self.route}' only partial sums travel; "
                "use all-gather, star or native(all-gather)"
            )
        if self.combine.weight(300) == 300 and self.layout.dtype in (torch.float16, torch.bfloat16):
            raise UserError(
                f"'{self.combine}' counts samples in the bucket's own type, where {self.layout.dtype} is too coarse; "
                "use mean, or float32 parameters with autocast"
            )
        self.route.prepare(self.comm)

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        weight = self.combine.weight(samples)
        buffer[-1] = weight
        if self.combine.linear and not self.route.meets:
            self._by_sums(buffer, weight)
        else:
            self.route.run(self.comm, buffer, self.tag, self._combine_rows)

    def _by_sums(self, buffer: Tensor, weight: float) -> None:
        body = buffer[: self.layout.numel]
        if weight != 1:
            body.mul_(weight)
        self.route.run(self.comm, buffer, self.tag)
        if self.combine.normalised:
            body.div_(buffer[-1])

    def _combine_rows(self, rows: Tensor) -> Tensor:
        numel = self.layout.numel
        body = self.combine.combine(rows[:, :numel], rows[:, -1])
        return torch.cat([body, rows[:, numel:].sum(0)])
