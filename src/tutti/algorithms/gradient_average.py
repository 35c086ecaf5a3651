"""Every worker steps with the same gradient: the average over all workers.

    g <- agree(g_1 ... g_n)    bucket by bucket, complete when backward returns
    x <- x - lr * g            or whatever the optimizer makes of g
    rounds and bytes per step: the exchange's, for every bucket

With `overlap` a full bucket is exchanged on the lane while backward goes on; without, everything after backward.
`bucket=0` makes a bucket of every tensor, which is what people write first.

Paper: Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour" (2017); Li et al., "PyTorch
distributed: experiences on accelerating data parallel training" (2020), for buckets and overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Lane, Pending
from tutti.exchanges.base import Exchange
from tutti.replica import Bucket, Replica
from tutti.spec import Bytes, part


@dataclass
class GradientAverage(Algorithm):
    exchange: Exchange = part(Exchange, "all-reduce")
    bucket: Bytes = 4 * 2**20
    overlap: bool = True

    def setup(self, replica: Replica, lane: Lane) -> None:
        self._replica, self._lane = replica, lane
        self._pending: list[Pending] = []
        self._ready: list[Bucket] = []
        replica.make_buckets(self.bucket, self.on_bucket)
        replica.scale_of = lambda bucket: self._exchanges[bucket.index].scale(replica.samples)
        self._exchanges = [
            self.exchange.setup(lane.comm, bucket.layout, f"gradients/{bucket.index}") for bucket in replica.buckets
        ]

    def on_bucket(self, bucket: Bucket) -> None:
        if self.overlap:
            self._pending.append(self._lane.submit(partial(self._agree, bucket)))
        else:
            self._ready.append(bucket)

    def finish(self) -> None:
        ready, self._ready = self._ready, []
        for bucket in ready:
            self._agree(bucket)
        pending, self._pending = self._pending, []
        for each in pending:
            each.wait()

    def _agree(self, bucket: Bucket) -> None:
        self._exchanges[bucket.index].agree(bucket.grads, self._replica.steps, self._replica.samples)

    def state_dict(self) -> dict[str, Any]:
        return {"exchanges": [exchange.state_dict() for exchange in self._exchanges]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for exchange, saved in zip(self._exchanges, state["exchanges"], strict=True):
            exchange.load_state_dict(saved)
