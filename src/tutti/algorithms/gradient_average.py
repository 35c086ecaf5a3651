"""Every worker steps with the same gradient: the average over all workers.

    g <- agree(g_1 ... g_n)    bucket by bucket, complete when backward returns
    x <- x - lr * g            or whatever the optimizer makes of g
    rounds and bytes per step: the exchange's, for every bucket

With `overlap` a full bucket is exchanged on the lane while backward goes on; without, everything after backward. The
first bucket is full sooner, so that there is something to send. `bucket=0` makes a bucket of every tensor, which is
what people write first; with `bucket=auto` a few sizes are tried in the first steps and the fastest is kept, the same
on all workers (which one depends on the day, and with it the rounding of the sums).

`update=bucket` lets the optimizer step on a bucket as soon as its gradient is there, on the lane. With `wait=forward`
backward does not wait for the rest either: the next forward waits, layer by layer. Both are for loops that do nothing
with the gradients between `backward()` and `run.step()`: reading or changing one there (clipping) is refused, and so
are hooks around the optimizer's step. With `wait=forward` there are no gradients after `run.step()`, as after
`zero_grad()`, and weights that are read neither through a module's forward nor by `state_dict()`, but directly
(`model.parameters()`), may still be those of the step before. The lane keeps to backward's order, in which the first
layers come last: what is hidden is the end of the exchange behind loading and the first layers, not more.

Paper: Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour" (2017); Li et al., "PyTorch
distributed: experiences on accelerating data parallel training" (2020), for buckets and overlap; Peng et al., "A
generic communication scheduler for distributed DNN training acceleration" (2019), for waiting in the next forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from tutti.algorithms.base import Algorithm, load_exchanges
from tutti.comm.base import Lane, Pending
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.replica import Bucket, Replica
from tutti.spec import Bytes, format_value, part
from tutti.tuning import Tuner, find_sizes

_FIRST = 2**20  # bytes at which the first bucket is full, or less where the others are smaller


@dataclass
class GradientAverage(Algorithm):
    exchange: Exchange = part(Exchange, "all-reduce")
    bucket: Bytes | Literal["auto"] = 4 * 2**20
    overlap: bool = True
    update: Literal["whole", "bucket"] = "whole"
    wait: Literal["backward", "forward"] = "backward"

    exchanges_in_backward: ClassVar[bool] = True
    same_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.wait == "forward" and (self.update == "whole" or not self.overlap):
            raise ValueError("wait=forward needs update=bucket and overlap: each bucket steps when its gradient comes")
        if self.update == "bucket" and not self.overlap:
            raise ValueError("update=bucket needs overlap: each bucket steps on the lane, when its gradient comes")

    def check(self, workers: int) -> None:
        if not self.exchange.exact:
            raise UserError(
                f"'{self.exchange}' leaves every worker with another gradient, and their weights would drift apart; "
                f"use model-average({self.exchange}), or all-reduce here"
            )
        super().check(workers)

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.bucket != "auto"

    @property
    def steps_in_backward(self) -> bool:  # type: ignore[override]
        return self.update == "bucket"

    @property
    def late_weights(self) -> bool:  # type: ignore[override]
        return self.wait == "forward"

    @property
    def tuning(self) -> bool:
        """Whether the size of the buckets is still being looked for."""
        return self._tuner is not None

    def choices(self) -> dict[str, str]:
        found = self.bucket == "auto" and not self.tuning
        return {**({"bucket": format_value(self._size, Bytes)} if found else {}), **super().choices()}

    def setup(self, replica: Replica, lane: Lane) -> None:
        if self.update == "bucket":
            replica.require_own_steps()
        self._replica, self._lane = replica, lane
        self._pending: dict[int, Pending] = {}  # by bucket
        self._ready: list[Callable[[], None]] = []
        self._waited = 0.0
        replica.scale_of = lambda bucket: self._exchanges[bucket.index].scale(replica.samples)
        replica.on_begin = self._begin
        self._tuner = self._make_tuner() if self.bucket == "auto" else None
        self._tried = lane.comm.clock.now()
        self._cut(self._tuner.candidates[0] if self._tuner else int(self.bucket))
        if self.wait == "forward":
            replica.watch_forward(self._wait_for, self._refuse_copy)

    def _cut(self, nbytes: int) -> None:
        """Make buckets of this size, and an exchange for each."""
        replica = self._replica
        self._size = nbytes
        replica.make_buckets(nbytes, self.on_bucket, first=min(_FIRST, nbytes))
        self._exchanges = [
            self.exchange.setup(self._lane.comm, bucket.layout, f"gradients/{bucket.index}")
            for bucket in replica.buckets
        ]
        self._late = replica.watched() if self.wait == "forward" else set()  # the buckets that backward leaves behind

    # --- a step ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.update == "bucket":
            self._replica.refuse_second_backward()
        self.drain()

    def on_bucket(self, bucket: Bucket) -> None:
        replica = self._replica  # the lane may come to it only when the next step's values stand there
        agree = partial(self._agree, bucket, replica.steps, replica.samples)
        if not self.overlap:
            self._ready.append(agree)
        elif self.update == "whole":
            self._pending[bucket.index] = self._lane.submit(agree)
        else:
            step = partial(self._agree_and_step, agree, bucket, replica.settings_of(bucket))
            self._pending[bucket.index] = self._lane.submit(step)

    def finish(self) -> None:
        ready, self._ready = self._ready, []
        for agree in ready:
            agree()
        for pending in [self._pending.pop(index) for index in list(self._pending) if index not in self._late]:
            pending.wait()
        if self.update == "bucket" and self._replica.in_backward:
            self._replica.spend(self._late)

    def drain(self) -> None:
        self._wait_for(list(self._pending))

    def step(self, replica: Replica) -> None:
        if self.update == "whole":
            replica.step()
        else:
            replica.note_own_steps()
        for index in self._late:
            replica.buckets[index].forget()  # or a zero_grad() would reach into what is under way
        if self._tuner is not None:
            self._tune(self._tuner)

    def _agree(self, bucket: Bucket, step: int, samples: float) -> None:
        self._exchanges[bucket.index].agree(bucket.grads, step, samples)
        if bucket.index not in self._late:
            bucket.adopt()

    def _agree_and_step(self, agree: Callable[[], None], bucket: Bucket, settings: dict[str, Any] | None) -> None:
        agree()
        if settings is not None:
            self._replica.step_elsewhere(bucket, settings)

    def _wait_for(self, buckets: Iterable[int]) -> None:
        """Outside `finish`. A bucket that failed stays, for whoever asks next: its weights have missed a step."""
        begun = self._lane.comm.clock.now()
        for index in buckets:
            if index in self._pending:
                self._pending[index].wait()
                del self._pending[index]
        self._waited += self._lane.comm.clock.now() - begun

    def _refuse_copy(self) -> None:
        if self._pending:
            raise UserError(
                "a model whose last step is still under way (wait=forward) cannot be copied or saved as a whole: call "
                "model.state_dict(), which waits for it, or use wait=backward"
            )

    def take_waited(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited

    # --- bucket=auto -------------------------------------------------------------------------------------------------

    def _make_tuner(self) -> Tuner:
        return Tuner(find_sizes(sum(p.nbytes for p in self._replica.model.parameters() if p.requires_grad)))

    def _tune(self, tuner: Tuner) -> None:
        """A step is over: note its time, and change to the next size, or to the best one for good."""
        clock = self._lane.comm.clock
        tuner.note(clock.now() - self._tried)
        if tuner.finished:
            seconds = torch.tensor(tuner.seconds(), dtype=torch.float64)
            self._lane.submit(lambda: self._lane.comm.all_reduce(seconds, tag="control/bucket")).wait()
            self._tuner = None
            nbytes = tuner.candidates[int(seconds.argmin())]
        else:
            nbytes = tuner.candidates[tuner.current]
        if nbytes != self._size:
            self.drain()
            self._cut(nbytes)
        self._tried = clock.now()

    # --- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        exchanges = [exchange.state_dict() for exchange in self._exchanges]
        return {"bucket": self._size, "tuned": self._tuner is None, "exchanges": exchanges}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.bucket == "auto":
            self._tuner = None if state["tuned"] else self._make_tuner()
            self._cut(state["bucket"])
        load_exchanges(self._exchanges, state["exchanges"])
