"""Every worker steps with its own gradient; then all agree on the weights, or each with its neighbours.

    u_i is what the optimizer adds to the weights: -lr * g_i, or whatever it makes of g_i with its own state
    order=adapt-first      x_i <- agree(x_1 + u_1 ... x_n + u_n)
    order=combine-first    x_i <- agree(x_1 ... x_n) + u_i
    rounds and bytes per step: the exchange's, for every bucket of weights

What it is depends on the exchange. Over all-reduce it is model averaging; where u is linear and the shares are equal
(SGD, with or without momentum and weight decay) it gives the weights of gradient averaging: momentum stays at each
worker and its mean is what one worker would have; with Adam the two differ. Over gossip it is D-PSGD, over relay
RelaySGD, over push-sum stochastic gradient push: workers then hold different weights, and `run.consensus()` has their
mean. Momentum is always the worker's own.

When it is exchanged: with adapt-first behind every step, bucket by bucket, complete when `run.step()` returns. With
`update=bucket` the optimizer steps on a bucket as soon as its gradient is there, on the lane, and its weights go out
while backward goes on; for loops that do nothing with the gradients between `backward()` and `run.step()` and have no
hooks around the optimizer's step, both of which are refused. With combine-first what the weights are exchanged for is
known before the forward, so the exchange runs on the lane while the whole step computes, and is added behind the
optimizer's step: one step late, and hidden if it takes no longer than computing. What was begun behind the last step is
in vain.

Over all-reduce the default, weighted-mean, weighs each worker's weights by `run.samples`: for plain SGD that is the
step of the whole batch, also when shares differ; with momentum only if a worker's share stays the same. With the
aggregator `sum` the model is multiplied by the number of workers at every step, as asked.

A worker without a backward takes part with its weights as they are. One with `run.samples = 0` makes no step of its own
and has no weight in weighted-mean; where no worker has samples all weights stay as they are.

A weight that no worker has a gradient for is averaged all the same, and the mean of n equal numbers is that number up
to rounding: a few units of the last place, the same on all workers, and with equal shares no more after many steps than
after the first few.

The state is each worker's own, since the optimizers' differ: every worker saves and loads its `run.state_dict()`.

Zinkevich et al. average the models once, at the end; McMahan et al. every so many steps.

Paper: Zinkevich, Weimer, Smola, Li, "Parallelized stochastic gradient descent" (2010); McMahan et al.,
"Communication-efficient learning of deep networks from decentralized data" (2017); Lian et al., "Can decentralized
algorithms outperform centralized algorithms?" (2017), for both orders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from tutti.algorithms.base import Algorithm, load_exchanges, start_weighted
from tutti.comm.base import Lane, Pending
from tutti.exchanges.base import Exchange
from tutti.replica import Bucket, Replica
from tutti.spec import Bytes, part


@dataclass
class ModelAverage(Algorithm):
    exchange: Exchange = part(Exchange, "all-reduce")
    bucket: Bytes = 4 * 2**20
    order: Literal["adapt-first", "combine-first"] = "adapt-first"
    update: Literal["whole", "bucket"] = "whole"

    def __post_init__(self) -> None:
        if self.update == "bucket" and self.order == "combine-first":
            raise ValueError("update=bucket is for order=adapt-first; combine-first exchanges while backward goes on")

    @property
    def equal(self) -> bool:  # type: ignore[override]
        return self.exchange.exact and self.order == "adapt-first"

    @property
    def buffers(self) -> Literal["average", "local"]:  # type: ignore[override]
        return "average" if self.equal else "local"

    @property
    def steps_in_backward(self) -> bool:  # type: ignore[override]
        return self.update == "bucket"

    def setup(self, replica: Replica, lane: Lane) -> None:
        if self.update == "bucket":
            replica.require_own_steps()
        self._replica, self._lane = replica, lane
        self._pending: dict[int, Pending] = {}  # by bucket
        self._waited = 0.0
        replica.on_begin = self._begin
        replica.make_buckets(self.bucket, self.on_bucket)
        self._exchanges = [
            self.exchange.setup(lane.comm, bucket.layout, f"weights/{bucket.index}") for bucket in replica.buckets
        ]
        later = replica.buckets if self.order == "combine-first" else []
        self._changes = [torch.zeros_like(bucket.spacious) for bucket in later]  # found while the step goes on
        for bucket in replica.buckets:
            self._exchanges[bucket.index].begin(bucket.weights)
            if self.order == "combine-first":
                self._submit(bucket, bucket.steps)

    # --- a step ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.update == "bucket":
            self._replica.refuse_second_backward()

    def on_bucket(self, bucket: Bucket) -> None:
        if self.update == "bucket":
            replica = self._replica
            agree = partial(self._agree, bucket, bucket.steps, replica.samples)
            work = partial(self._step_and_agree, agree, bucket, replica.settings_of(bucket))
            self._pending[bucket.index] = self._lane.submit_parts(work)

    def step(self, replica: Replica) -> None:
        """Bucket by bucket where that is the same as all at once: a bucket is exchanged while the next one steps."""
        if self.update == "bucket":
            replica.note_own_steps()
            return
        one_by_one = replica.steps_alone()
        if not one_by_one:
            self.drain()  # the lane reads the weights
            replica.step()
        for bucket in replica.due():
            self._wait_for(bucket.index)
            if one_by_one:
                replica.local_step(bucket)
            if self.order == "combine-first":
                bucket.weights.add_(self._changes[bucket.index][: bucket.layout.numel])
            self._submit(bucket, bucket.steps + (self.order == "combine-first"))

    def _submit(self, bucket: Bucket, step: int) -> None:
        work = self._agree if self.order == "adapt-first" else self._find_change
        self._pending[bucket.index] = self._lane.submit_parts(partial(work, bucket, step, self._replica.step_samples))

    def finish(self) -> None:
        if self.order == "adapt-first":
            for index in list(self._pending):
                self._pending.pop(index).wait()
        if self.update == "bucket" and self._replica.in_backward:
            self._replica.spend()

    def drain(self) -> None:
        for index in list(self._pending):
            self._wait_for(index)

    def _wait_for(self, index: int) -> None:
        begun = self._lane.comm.clock.now()
        if index in self._pending:
            self._pending.pop(index).wait()
        self._waited += self._lane.comm.clock.now() - begun

    def take_waited(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited

    # --- on the lane, in two parts -----------------------------------------------------------------------------------

    def _step_and_agree(
        self, agree: Callable[[], Callable[[], None]], bucket: Bucket, settings: dict[str, Any] | None
    ) -> Callable[[], None]:
        if settings is not None:
            self._replica.step_elsewhere(bucket, settings)
        return agree()

    def _agree(self, bucket: Bucket, step: int, samples: float) -> Callable[[], None]:
        return self._exchange(bucket, bucket.spacious, step, samples)

    def _find_change(self, bucket: Bucket, step: int, samples: float) -> Callable[[], None]:
        """What agreeing would change; added behind the step."""
        change = self._changes[bucket.index].copy_(bucket.spacious)
        complete = self._exchange(bucket, change, step, samples)

        def subtract() -> None:
            complete()
            change[: bucket.layout.numel] -= bucket.weights

        return subtract

    def _exchange(self, bucket: Bucket, buffer: Tensor, step: int, samples: float) -> Callable[[], None]:
        return start_weighted(self._exchanges[bucket.index], buffer, bucket.layout.numel, step, samples)

    # --- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        exchanges = [exchange.state_dict() for exchange in self._exchanges]
        return {"exchanges": exchanges, "changes": [change.clone() for change in self._changes]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_exchanges(self._exchanges, state["exchanges"])
        for change, saved in zip(self._changes, state["changes"], strict=True):
            change.copy_(saved)
