"""Every worker steps by an estimate of everybody's gradient, which it keeps up to date with its neighbours.

    x_i <- sum_j W_ij (x_j + u_j + c_j)    u is what the optimizer adds to the weights: -lr * g, or what it makes of g
    c_i <- sum_j W_ij (c_j + u_j) - u_i    what the others' steps have more than its own; zero at the start
    rounds and bytes per step: twice the exchange's, for every bucket

The same as x <- W (x - lr y), y <- W y + g - g', y = g at the start, where a dash marks the step before: y follows the
mean gradient, since the mean of all c is zero. With a constant learning rate and whole gradients all workers come to
the optimum of the sum, where D-PSGD stops near it. Tracked is the optimizer's step rather than the gradient, so that
momentum and Adam work as well; when a schedule changes the learning rate, c follows within a few steps.

W may change from step to step, as long as it keeps the mean; exchanges that remember (relay, push-sum) have no W.

A worker without a backward takes part with u = 0. The state is each worker's own: every worker saves and loads its
`run.state_dict()`. Correction and step take twice the memory of the weights.

Paper: Koloskova, Lin, Stich, "An improved analysis of gradient tracking for decentralized machine learning" (2021), for
the form above; Di Lorenzo, Scutari, "NEXT: in-network nonconvex optimization" (2016); Nedic, Olshevsky, Shi, "Achieving
geometric convergence for distributed optimization over time-varying graphs" (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from tutti.algorithms.base import OwnSteps
from tutti.comm.base import Lane
from tutti.errors import UserError
from tutti.replica import Bucket, Replica


@dataclass
class GradientTracking(OwnSteps):
    kinds: ClassVar[tuple[str, ...]] = ("weights", "gradients")

    def check(self, workers: int) -> None:
        super().check(workers)
        matrix = self.exchange.mixing(workers)
        if matrix is None or not np.allclose([matrix.sum(0), matrix.sum(1)], 1):
            raise UserError(
                f"'gradient-tracking' needs an exchange that averages by a matrix, and '{self.exchange}' does not; "
                "use gossip(ring)"
            )

    def setup(self, replica: Replica, lane: Lane) -> None:
        super().setup(replica, lane)
        self._before = [torch.zeros_like(bucket.weights) for bucket in replica.buckets]

    def _note(self, bucket: Bucket) -> None:
        self._before[bucket.index].copy_(bucket.weights)

    def _meet(self, bucket: Bucket) -> None:
        before, correction = self._before[bucket.index], self._memory[bucket.index]
        body = self._rooms[bucket.index][: bucket.layout.numel]
        own = torch.sub(bucket.weights, before, out=before)
        torch.add(bucket.weights, correction, out=body)
        bucket.weights.copy_(self._agree(bucket))
        torch.add(correction, own, out=body)
        torch.sub(self._agree(bucket, "gradients"), own, out=correction)
