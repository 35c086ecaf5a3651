"""Every worker makes its own step; then all agree on what the steps have added, not on the weights.

    u_i <- what the optimizer adds to the weights: -lr * g_i, or whatever it makes of g_i with its own state
    x_i <- x_i + agree(u_1 ... u_n)     after every step, complete when `run.step()` returns
    rounds and bytes per step: the exchange's, for every bucket of weights

With an exact mean all workers stay equal, and it is model averaging up to rounding; a weight that no worker has a
gradient for keeps its value. With the aggregator `sum` the steps of all workers are added up.

Over `relay(chain, missing=initial)` it is RelaySGD on gradients: every update reaches every worker exactly once,
divided by n, one step late for each worker on the way between them, and one that is still on its way counts as nothing.
(With `counts` and `own` those that have come stand for the missing ones, which are added all the same when they come.)
Workers hold different weights, and stay together: they differ by the updates that are on their way, and for good by
those that were lost. Over gossip they drift apart, since updates are mixed and weights are not: `model-average` is for
that.

A worker without a backward, or whose GradScaler skips the step, takes part with an update of zero. The state is each
worker's own, since the optimizers' differ: every worker saves and loads its `run.state_dict()`.

Paper: Vogels et al., "RelaySum for decentralized deep learning on heterogeneous data" (2021), as RelaySGD/Grad.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tutti.algorithms.base import OwnSteps
from tutti.comm.base import Lane
from tutti.exchanges.base import Exchange
from tutti.replica import Bucket, Replica
from tutti.spec import part


@dataclass
class UpdateAverage(OwnSteps):
    exchange: Exchange = part(Exchange, "all-reduce")

    def setup(self, replica: Replica, lane: Lane) -> None:
        super().setup(replica, lane)
        for exchange, before in zip(self._exchanges["weights"], self._memory, strict=True):
            exchange.begin(torch.zeros_like(before))

    def _note(self, bucket: Bucket) -> None:
        self._memory[bucket.index].copy_(bucket.weights)

    def _meet(self, bucket: Bucket) -> None:
        before, room = self._memory[bucket.index], self._rooms[bucket.index]
        torch.sub(bucket.weights, before, out=room[: bucket.layout.numel])
        torch.add(before, self._agree(bucket), out=bucket.weights)
