"""Every worker steps with its own gradient, then all agree on the weights.

    x_i <- x_i - lr * u(g_i)        the optimizer's own step, with its own state
    x   <- agree(x_1 ... x_n)       after every step, complete when `run.step()` returns
    rounds and bytes per step: the exchange's, for every bucket of weights

All-reduce model averaging. Where u is linear and the shares are equal (SGD, with or without momentum and weight decay)
it gives the weights of gradient averaging; momentum stays at each worker and its mean is what one worker would have.
With Adam the two differ. The default, weighted-mean, weighs each worker's weights by `run.samples`: for plain SGD that
is the step of the whole batch, also when shares differ; with momentum only if a worker's share stays the same. With the
aggregator `sum` the model is multiplied by the number of workers at every step, as asked.

A worker without a backward takes part with its weights as they are. A weight that no worker has a gradient for is
averaged all the same, and the mean of n equal numbers is that number up to rounding: a few units of the last place, the
same on all workers, and with equal shares no more after many steps than after the first few.

The state is each worker's own, since the optimizers' differ: every worker saves and loads its `run.state_dict()`.

Zinkevich et al. average the models once, at the end; McMahan et al. every so many steps.

Paper: Zinkevich, Weimer, Smola, Li, "Parallelized stochastic gradient descent" (2010); McMahan et al.,
"Communication-efficient learning of deep networks from decentralized data" (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Lane, Pending
from tutti.exchanges.base import Exchange
from tutti.replica import Bucket, Replica
from tutti.spec import Bytes, part


@dataclass
class ModelAverage(Algorithm):
    exchange: Exchange = part(Exchange, "all-reduce")
    bucket: Bytes = 4 * 2**20

    buffers: ClassVar[Literal["broadcast", "average", "local"]] = "average"

    def setup(self, replica: Replica, lane: Lane) -> None:
        self._replica, self._lane = replica, lane
        self._pending: list[Pending] = []
        replica.make_buckets(self.bucket, self.on_bucket)
        self._exchanges = [
            self.exchange.setup(lane.comm, bucket.layout, f"weights/{bucket.index}") for bucket in replica.buckets
        ]
        self._copies = [bucket.weights.new_empty(bucket.layout.total) for bucket in replica.buckets]

    def step(self, replica: Replica) -> None:
        """Bucket by bucket where that is the same as all at once: a bucket is exchanged while the next one steps."""
        one_by_one = replica.scaler is None and replica.steps_alone()
        if not one_by_one:
            replica.step()
        for bucket in replica.buckets:
            if one_by_one:
                replica.local_step(bucket)
            self._pending.append(self._lane.submit(partial(self._agree, bucket)))

    def finish(self) -> None:
        pending, self._pending = self._pending, []
        for each in pending:
            each.wait()

    def _agree(self, bucket: Bucket) -> None:
        exchange, copy, numel = self._exchanges[bucket.index], self._copies[bucket.index], bucket.layout.numel
        samples = self._replica.samples
        torch.mul(bucket.weights, exchange.scale(samples), out=copy[:numel])
        copy[numel:] = 1  # every slice counts as used; the last element is the exchange's to fill
        exchange.agree(copy, self._replica.steps, samples)
        bucket.weights.copy_(copy[:numel])

    def state_dict(self) -> dict[str, Any]:
        return {"exchanges": [exchange.state_dict() for exchange in self._exchanges]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for exchange, saved in zip(self._exchanges, state["exchanges"], strict=True):
            exchange.load_state_dict(saved)
