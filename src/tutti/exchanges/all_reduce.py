"""All workers combine their buffers over one route; all end with the same one.

    linear aggregator:  x <- sum(w_i x_i) [ / sum(w_i) ]     on any route; x_i comes in scaled by w_i [ / n ]
    any aggregator:     x <- combine(x_1 ... x_n)            on routes where whole contributions meet

A contribution from no samples has no weight: aggregators do not see it, and where no worker has samples the result is
zero. An aggregator sees whole buckets, or each tensor alone where it asks for that. Bytes and rounds are the route's,
for the buffer with its spare elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tutti.aggregators.base import Aggregator
from tutti.collectives.base import Collective
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.graph import Matrix
from tutti.spec import part


@dataclass
class AllReduce(Exchange):
    route: Collective = part(Collective, "ring")
    combine: Aggregator = part(Aggregator, "weighted-mean")

    def check(self, workers: int) -> None:
        if not self.combine.linear and not self.route.meets:
            raise UserError(
                f"'{self.combine}' needs whole contributions, and on '{self.route}' only partial sums travel; "
                "use all-gather, star, native(all-gather) or native(gather-scatter)"
            )
        super().check(workers)

    def prepare(self) -> None:
        if self.combine.weight(300) == 300 and self.layout.dtype in (torch.float16, torch.bfloat16):
            raise UserError(
                f"'{self.combine}' counts samples in the bucket's own type, where {self.layout.dtype} is too coarse; "
                "use mean, or float32 parameters with autocast"
            )
        self.route.prepare(self.comm)

    def scale(self, samples: float) -> float:
        """On the way into the buffer: w_i / n for a mean, so that half precision does not overflow in the sum."""
        if self.route.meets:
            return 1.0
        weight = self.combine.weight(samples)
        return weight / self.comm.size if self.combine.normalised else weight

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        buffer[-1] = self.combine.weight(samples)
        if self.route.meets:
            self.route.run(self.comm, buffer, self.tag, self._combine_rows)
            return
        self.route.run(self.comm, buffer, self.tag)
        if self.combine.normalised:
            self._divide(buffer[: self.layout.numel], buffer[-1] / self.comm.size)

    def mixing(self, workers: int, step: int = 0) -> Matrix | None:
        """For equal shares."""
        if not self.combine.linear:
            return None
        return np.full((workers, workers), 1 / workers if self.combine.normalised else 1.0)

    def _divide(self, body: Tensor, mean_weight: Tensor) -> None:
        """By the mean of all weights; usually that is one and the whole pass over the buffer can be spared. Where it is
        zero, so is the sum, and stays so."""
        if not body.is_cpu or float(mean_weight) not in (0, 1):
            body.div_(mean_weight.where(mean_weight != 0, 1))

    def _combine_rows(self, rows: Tensor) -> Tensor:
        numel = self.layout.numel
        flags, weights = rows[:, numel:-1], rows[:, -1:]
        if not self.combine.linear:  # a bad worker's flag counts as one at most; its weight is nobody's concern
            flags = flags.nan_to_num(nan=0).clamp(0, 1)
        return torch.cat([self._combine_weighty(rows[:, :numel], weights[:, 0]), flags.sum(0), weights.sum(0)])

    def _combine_weighty(self, bodies: Tensor, weights: Tensor) -> Tensor:
        """Without the contributions that have no weight."""
        counts = weights != 0
        if counts.all():
            return self._combine_bodies(bodies, weights)
        if not counts.any():
            return bodies.new_zeros(self.layout.numel)
        self.combine.check(int(counts.sum()))
        return self._combine_bodies(bodies[counts], weights[counts])

    def _combine_bodies(self, bodies: Tensor, weights: Tensor) -> Tensor:
        if not self.combine.by_layer:
            return self.combine.combine(bodies, weights)
        result = bodies.new_zeros(self.layout.numel)
        for piece in self.layout.slices:
            where = slice(piece.offset, piece.offset + piece.numel)
            result[where] = self.combine.combine(bodies[:, where], weights)
        return result
