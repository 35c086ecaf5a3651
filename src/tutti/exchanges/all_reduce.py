"""All workers combine their buffers over one route; all end with the same one.

    linear aggregator:  x <- sum(w_i x_i) [ / sum(w_i) ]     on any route; x_i comes in scaled by w_i [ / n ]
    any aggregator:     x <- combine(x_1 ... x_n)            on routes where whole contributions meet

A contribution from no samples has no weight: aggregators do not see it, and where no worker has samples the result is
zero. An aggregator sees whole buckets, or each tensor alone where it asks for that. Bytes and rounds are the route's,
for the buffer with its spare elements. In a buffer of 16-bit numbers, which cannot count samples, the weights travel
apart, eight bytes from each worker to each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

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
    _apart: bool = field(init=False, default=False, repr=False, compare=False)  # weights do not travel in the buffer

    def check(self, workers: int) -> None:
        if not self.combine.linear and not self.route.meets:
            raise UserError(
                f"'{self.combine}' needs whole contributions, and on '{self.route}' only partial sums travel; "
                "use all-gather, star, native(all-gather) or native(gather-scatter)"
            )
        super().check(workers)

    def prepare(self) -> None:
        counts_samples = self.combine.weight(300) == 300
        self._apart = counts_samples and self.layout.dtype in (torch.float16, torch.bfloat16)
        self.route.prepare(self.comm)

    def scale(self, samples: float) -> float:
        """On the way into the buffer: w_i / n for a mean, so that half precision does not overflow in the sum."""
        if self.route.meets:
            return 1.0
        weight = 1.0 if self._apart else self.combine.weight(samples)
        return weight / self.comm.size if self.combine.normalised else weight

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        buffer[-1] = weight = self.combine.weight(samples)
        if self._apart:
            self._agree_in_coarse_numbers(buffer, weight)
        elif self.route.meets:
            self.route.run(self.comm, buffer, self.tag, self._combine_rows)
        else:
            self.route.run(self.comm, buffer, self.tag)
            if self.combine.normalised:
                self._divide(buffer[: self.layout.numel], buffer[-1] / self.comm.size)

    def _agree_in_coarse_numbers(self, buffer: Tensor, weight: float) -> None:
        """Every contribution is weighed before it travels, by its share of the mean weight: near one, whatever the
        unit of samples is."""
        weights = self._share_weights(weight)
        if self.route.meets:
            self.route.run(self.comm, buffer, self.tag, partial(self._combine_rows, weights=weights))
            return
        unit = float(weights.mean()) if self.combine.normalised else 1.0
        body = buffer[: self.layout.numel]
        if weight == 0:
            body.zero_()
        elif weight != unit:
            body.mul_(weight / unit)
        self.route.run(self.comm, buffer, self.tag)

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

    def _share_weights(self, weight: float) -> Tensor:
        """Everybody's."""
        rows = torch.empty(self.comm.size, 1, dtype=torch.float64)
        self.comm.all_gather(torch.tensor([weight], dtype=torch.float64), rows, self.tag)
        return rows[:, 0]

    def _combine_rows(self, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        numel = self.layout.numel
        flags, own_weights = rows[:, numel:-1], rows[:, -1]
        bodies = rows[:, :numel]
        if weights is None:
            weights = own_weights
        else:  # for 16-bit numbers, which are too coarse to be combined in
            bodies, weights = bodies.float(), weights.float().to(rows.device)
        if not self.combine.linear:  # a bad worker's flag counts as one at most; its weight is nobody's concern
            flags = flags.nan_to_num(nan=0).clamp(0, 1)
        combined = self._combine_weighty(bodies, weights).to(rows.dtype)
        return torch.cat([combined, flags.sum(0), own_weights.sum(0)[None]])

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
