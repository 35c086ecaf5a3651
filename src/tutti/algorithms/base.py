"""The contract of an algorithm: what is exchanged, and when.

`setup` ties it to a replica and a lane; `on_bucket` is called in bucket order while backward goes on and never blocks;
`finish` is called when backward is over and returns when the gradients are what they shall be; `step` updates the
weights. What a step exchanges it puts on the lane and leaves to `finish`, which is called behind it once more: the run
times that wait. Traits are class attributes and are checked when a run is set up.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from tutti.comm.base import Lane
from tutti.replica import Bucket, Replica
from tutti.spec import Member


@dataclass
class Algorithm(Member):
    axis: ClassVar[str] = "algorithms"
    noun: ClassVar[str] = "algorithm"
    buffers: ClassVar[Literal["broadcast", "average", "local"]] = "broadcast"
    deterministic: ClassVar[bool] = True
    one_worker: ClassVar[bool] = False  # runs on a single worker, with the whole batch
    needs_process_group: ClassVar[bool] = False

    @abstractmethod
    def setup(self, replica: Replica, lane: Lane) -> None:
        """Tie this algorithm to a replica and a lane (every worker together)."""

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
