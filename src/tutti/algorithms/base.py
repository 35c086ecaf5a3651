"""The contract of an algorithm: what is exchanged, and when.

`setup` ties it to a replica and a lane; `on_bucket` is called in bucket order while backward goes on and never blocks;
`finish` is called when backward is over and returns when the gradients are what they shall be; `step` updates the
weights. What a step exchanges it puts on the lane and leaves to `finish`, which is called behind it once more: the run
times that wait. Traits are class attributes and are checked when a run is set up.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from tutti.comm.base import Lane, Pending
from tutti.exchanges.base import Exchange
from tutti.replica import Bucket, Replica
from tutti.spec import Bytes, Member, part


@dataclass
class Algorithm(Member):
    axis: ClassVar[str] = "algorithms"
    noun: ClassVar[str] = "algorithm"
    buffers: ClassVar[Literal["broadcast", "average", "local"]] = "broadcast"
    equal: ClassVar[bool] = True  # all workers hold the same weights behind every step
    exchanges_in_backward: ClassVar[bool] = False  # each backward is an operation that all workers must make
    same_steps: ClassVar[bool] = False  # all workers step with the same gradient: their optimizers hold the same state
    deterministic: ClassVar[bool] = True
    one_worker: ClassVar[bool] = False  # runs on a single worker, with the whole batch
    needs_process_group: ClassVar[bool] = False
    steps_in_backward: ClassVar[bool] = False  # gradients are spent when backward returns
    late_weights: ClassVar[bool] = False  # weights may be those of the step before until the next forward
    no_join: ClassVar[str] = ""  # why `run.join()` does not work, and what would; empty where it does

    @abstractmethod
    def setup(self, replica: Replica, lane: Lane) -> None:
        """Tie this algorithm to a replica and a lane (every worker together)."""

    def set_up_again(self, replica: Replica, lane: Lane) -> None:
        """The same in mid-run, since what is trained has changed: as from the start, where nothing else is said."""
        self.setup(replica, lane)

    def counts_steps(self) -> bool:
        """Whether it has something to `expect` of a run's length."""
        return False

    def expect(self, steps: int) -> None:
        """A run of so many steps begins: refuse what would come behind its end."""

    def on_bucket(self, bucket: Bucket) -> None:
        """A bucket's gradients are there."""

    def finish(self) -> None:
        """Backward is over, or the step: return when everything under way is complete."""

    def drain(self) -> None:
        """Return when nothing is under way, also what `finish` leaves for later."""
        self.finish()

    def take_waited(self) -> float:
        """Seconds that the loop has waited for communication outside `finish`, since the last call."""
        return 0.0

    def step(self, replica: Replica) -> None:
        """Update the weights, and put on the lane what is to be exchanged of them."""
        replica.step()

    def model(self, replica: Replica) -> nn.Module:
        """What the loop calls: the user's own model, unless the algorithm needs a wrapper."""
        return replica.model

    def accumulate(self, replica: Replica) -> AbstractContextManager[None]:
        """While this lasts, backward only adds up gradients."""
        return replica.paused()

    def overlap_seconds(self) -> tuple[float, float] | None:
        """(hidden, exposed) seconds of communication per step, where the algorithm knows better than the lane."""
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state, f"'{self.name}' has no state"

    def close(self) -> None:
        """Let go of what `setup` made."""


@dataclass
class OwnSteps(Algorithm):
    """What those have in common in which every worker makes the optimizer's own step, and buckets are exchanged behind
    it: one on the lane while the next one steps.

    A member has one flat tensor per bucket to remember from step to step (`_memory`, part of its state) and one to
    exchange from (`_rooms`). It says what to note before a bucket steps, and what the lane does behind that.
    """

    exchange: Exchange = part(Exchange, "gossip")
    bucket: Bytes = 4 * 2**20

    kinds: ClassVar[tuple[str, ...]] = ("weights",)  # of traffic: a bucket has an exchange for each

    @property
    def equal(self) -> bool:  # type: ignore[override]
        return self.exchange.exact

    @property
    def buffers(self) -> Literal["average", "local"]:  # type: ignore[override]
        return "average" if self.equal else "local"

    def setup(self, replica: Replica, lane: Lane) -> None:
        self._replica, self._lane = replica, lane
        self._pending: list[Pending] = []
        replica.make_buckets(self.bucket, self.on_bucket)
        self._exchanges = {
            kind: [self.exchange.setup(lane.comm, b.layout, f"{kind}/{b.index}") for b in replica.buckets]
            for kind in self.kinds
        }
        for bucket in replica.buckets:
            self._exchanges["weights"][bucket.index].begin(bucket.weights)
        self._memory = [bucket.weights.new_zeros(bucket.layout.numel) for bucket in replica.buckets]
        self._rooms = [bucket.weights.new_zeros(bucket.layout.total) for bucket in replica.buckets]

    def step(self, replica: Replica) -> None:
        """Bucket by bucket where that is the same as all at once."""
        one_by_one, due = replica.steps_alone(), replica.due()
        if not one_by_one:
            for bucket in due:
                self._note(bucket)
            replica.step()
        for bucket in due:
            if one_by_one:
                self._note(bucket)
                replica.local_step(bucket)
            self._pending.append(self._lane.submit(partial(self._meet, bucket)))

    def finish(self) -> None:
        pending, self._pending = self._pending, []
        for each in pending:
            each.wait()

    def _note(self, bucket: Bucket) -> None:
        """This bucket is about to step."""

    @abstractmethod
    def _meet(self, bucket: Bucket) -> None:
        """This bucket has stepped: exchange what is to be exchanged and leave the weights as they shall be."""

    def _agree(self, bucket: Bucket, kind: str = "weights") -> Tensor:
        """What the others and this worker make of what lies in the bucket's room; it lies there as well."""
        exchange, room, numel = self._exchanges[kind][bucket.index], self._rooms[bucket.index], bucket.layout.numel
        start_weighted(exchange, room, numel, bucket.steps, self._replica.step_samples)()
        return room[:numel]

    def state_dict(self) -> dict[str, Any]:
        exchanges = {kind: [each.state_dict() for each in row] for kind, row in self._exchanges.items()}
        return {"memory": [memory.clone() for memory in self._memory], "exchanges": exchanges}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for memory, saved in zip(self._memory, state["memory"], strict=True):
            memory.copy_(saved)
        for kind, row in self._exchanges.items():
            load_exchanges(row, state["exchanges"][kind])


def load_exchanges(exchanges: Sequence[Exchange], saved: Sequence[dict[str, Any]]) -> None:
    """What they remember, bucket by bucket; where that is nothing, the buckets may have been others."""
    if any(saved):
        for exchange, state in zip(exchanges, saved, strict=True):
            exchange.load_state_dict(state)


def start_weighted(exchange: Exchange, buffer: Tensor, numel: int, step: int, samples: float) -> Callable[[], None]:
    """Start to agree on weights, or on what is added to them; the function returned completes it.

    Where no worker has samples there is no mean, and every worker keeps what it has.
    """
    own = None if samples else buffer[:numel].clone()
    if (scale := exchange.scale(samples)) != 1:
        buffer[:numel] *= scale
    buffer[numel:] = 1  # every slice counts as used; the last element is the exchange's to fill
    complete = exchange.start(buffer, step, samples)
    if own is None:
        return complete

    def complete_or_keep() -> None:
        complete()
        if float(buffer[-1]) == 0:
            buffer[:numel] = own

    return complete_or_keep
