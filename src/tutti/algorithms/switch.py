"""Trains with one algorithm first and with another one from some step on.

    up to the switch   what `one` does
    behind it          what `other` does, on the same model, with the optimizer as it is
    at=N               behind the run's step N, so that `one` makes N steps
    at=lr-decay        behind the first step whose learning rate is below half of the largest so far (post-local SGD)
    at=asked           behind the next step after a worker's loop has called `run.algorithm.ask()`
    rounds and bytes per step: those of the one that trains, and for at=lr-decay and at=asked a byte to all before it

All workers switch behind the same step. They vote on a condition at every step, and one of them is enough; the learning
rate is the largest of all groups.

At the switch everything that `one` has under way is completed, and its own state (buckets, messages) is let go. If
`other` keeps all workers equal, they have to start equal: weights, floating buffers and the optimizer's floating state
that differ between workers are replaced by their mean, in which each worker counts one. (Momentum too: where it
differs, equal gradients would drive equal workers apart.) What is equal already keeps its bits, other buffers are left
alone, and state that a worker's optimizer has not made yet counts as zero. If `other` lets workers differ, nothing is
averaged: each goes on from where it is.

Both are set up once at the start, so that what cannot work is refused then. Both may be switches themselves: numbers
count the steps of the whole run, and `ask()` is heard by the innermost one that waits for it. The state is each
worker's own and says which of the two it belongs to.

Paper: Lin, Stich, Patel, Jaggi, "Don't use large mini-batches, use local SGD" (2020), for switching when the learning
rate decays.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Comm, Lane
from tutti.errors import UserError
from tutti.optimizers import Optimizers
from tutti.replica import Bucket, Replica
from tutti.spec import Count, part

_VOTES = "control/switch"


@dataclass
class Switch(Algorithm):
    at: Count | Literal["lr-decay", "asked"] = "lr-decay"
    one: Algorithm = part(Algorithm, "gradient-average")
    other: Algorithm = part(Algorithm, "model-average")
    # of a run, no part of the spec
    switched: bool = field(init=False, default=False, repr=False, compare=False)
    _switched_behind: int = field(init=False, default=0, repr=False, compare=False)
    _running: Algorithm | None = field(init=False, default=None, repr=False, compare=False)
    _waited: float = field(init=False, default=0.0, repr=False, compare=False)

    def __post_init__(self) -> None:
        for each in (self.one, self.other):
            if each.one_worker:
                raise ValueError(f"'{each}' cannot be a part of 'switch', since it runs on one worker; use ddp")
            if each.needs_process_group:
                raise ValueError(f"'{each}' cannot be a part of 'switch', since it wraps the model; use ddp")
            self._check_inner(each)

    def _check_inner(self, inner: Algorithm) -> None:
        """Steps are counted from the run's beginning, also within another switch."""
        if not (isinstance(inner, Switch) and isinstance(inner.at, int) and isinstance(self.at, int)):
            return
        if inner is self.other and inner.at <= self.at:
            raise ValueError(
                f"step {inner.at} of the inner switch is over when it begins, behind step {self.at} (all steps count "
                "from the beginning); let it switch later"
            )
        if inner is self.one and inner.at >= self.at:
            raise ValueError(f"step {inner.at} of the inner switch never comes: it is left behind step {self.at}")

    # --- traits ------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Algorithm:
        """The one that trains now; before a run, the first."""
        return self._running or self.one

    @property
    def equal(self) -> bool:  # type: ignore[override]
        return self.current.equal

    @property
    def exchanges_in_backward(self) -> bool:  # type: ignore[override]
        return self.current.exchanges_in_backward

    @property
    def steps_in_backward(self) -> bool:  # type: ignore[override]
        return self.current.steps_in_backward

    @property
    def late_weights(self) -> bool:  # type: ignore[override]
        return self.current.late_weights

    @property
    def same_steps(self) -> bool:  # type: ignore[override]
        return self.current.same_steps

    @property
    def no_join(self) -> str:  # type: ignore[override]
        if self.switched:
            return self.current.no_join
        return "it may switch while workers have old weights; join after the switch, or train with one algorithm"

    @property
    def buffers(self) -> Literal["broadcast", "average", "local"]:  # type: ignore[override]
        return self.current.buffers

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.one.deterministic and self.other.deterministic

    def choices(self) -> dict[str, str]:
        if isinstance(self.at, int):
            return self.current.choices()
        what, when = ("to switch", f"behind step {self._switched_behind}") if self.switched else ("never", "to switch")
        return {what: when, **self.current.choices()}

    def counts_steps(self) -> bool:
        return isinstance(self.at, int) or self.one.counts_steps() or self.other.counts_steps()

    def expect(self, steps: int) -> None:
        if isinstance(self.at, int) and self.at >= steps:
            raise UserError(
                f"'{self.spell()}' would never switch: the run ends with step {steps}; switch before, or train longer"
            )
        for each in (self.one, self.other):
            each.expect(steps)

    # --- what the current one does -----------------------------------------------------------------------------------

    def on_bucket(self, bucket: Bucket) -> None:
        self.current.on_bucket(bucket)

    def finish(self) -> None:
        self.current.finish()

    def drain(self) -> None:
        self.current.drain()

    def take_waited(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited + self.current.take_waited()

    def model(self, replica: Replica) -> nn.Module:
        return self.current.model(replica)

    def accumulate(self, replica: Replica) -> AbstractContextManager[None]:
        return self.current.accumulate(replica)

    def overlap_seconds(self) -> tuple[float, float] | None:
        return self.current.overlap_seconds()

    def close(self) -> None:
        self.current.close()

    # --- a step ------------------------------------------------------------------------------------------------------

    def setup(self, replica: Replica, lane: Lane) -> None:
        self._replica, self._lane = replica, lane
        self._asked = False
        self._largest = 0.0  # learning rate so far
        self._use(switched=True)  # which refuses now what it would refuse at the switch
        self._leave()
        self._use(switched=False)

    def set_up_again(self, replica: Replica, lane: Lane) -> None:
        """The one that trains now begins anew; whether it has switched, and what it has seen so far, stay."""
        self.current.set_up_again(replica, lane)

    def step(self, replica: Replica) -> None:
        if self.switched:
            self.current.step(replica)
            return
        is_time = self._find_out(replica)
        self.current.step(replica)
        if is_time():
            self._switch()
            self._switched_behind = replica.steps + 1

    def ask(self) -> None:
        """All workers shall switch behind the next step."""
        if isinstance(self.current, Switch) and self.current._waits_for_ask():
            self.current.ask()
        elif self.at == "asked":
            self._asked = True
        elif not self._listens():
            raise UserError(f"'{self}' switches by itself; write switch(asked, ...) for a run that asks for it")

    def _waits_for_ask(self) -> bool:
        within = isinstance(self.current, Switch) and self.current._waits_for_ask()
        return within or (self.at == "asked" and not self.switched)

    def _listens(self) -> bool:
        """Whether it waits for being asked at any time."""
        return self.at == "asked" or any(isinstance(s, Switch) and s._listens() for s in (self.one, self.other))

    def _find_out(self, replica: Replica) -> Callable[[], bool]:
        """Begin to find out whether this is the step to switch behind; the votes travel while it is made."""
        if isinstance(self.at, int):
            due = replica.steps + 1 >= self.at
            return lambda: due
        wanted = self._asked if self.at == "asked" else self._has_decayed(replica)
        votes = torch.zeros(self._lane.comm.size, 1, dtype=torch.uint8)
        pending = self._lane.submit(partial(self._lane.comm.all_gather, torch.tensor([wanted]).byte(), votes, _VOTES))

        def has_any() -> bool:
            self._time(pending.wait)
            return bool(votes.any())

        return has_any

    def _has_decayed(self, replica: Replica) -> bool:
        rate = max(float(group["lr"]) for group in replica.optimizers.groups)
        self._largest = max(self._largest, rate)
        return rate < self._largest / 2

    # --- the switch --------------------------------------------------------------------------------------------------

    def _switch(self) -> None:
        self._time(self.current.finish)
        self._leave()
        if self.other.equal:
            self._time(self._lane.submit(partial(_make_equal, self._replica, self._lane.comm)).wait)
        self._use(switched=True)

    def _use(self, switched: bool) -> None:
        self.switched = switched
        self._running = replace(self.other if switched else self.one)
        self._running.setup(self._replica, self._lane)

    def _leave(self) -> None:
        """Complete what is under way, and take the current one off the replica."""
        self.current.drain()
        self._waited += self.current.take_waited()
        self.current.close()
        self._replica.release()

    def _time(self, wait: Callable[[], Any]) -> None:
        begun = self._lane.comm.clock.now()
        wait()
        self._waited += self._lane.comm.clock.now() - begun

    # --- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        so_far = {
            "switched": self.switched,
            "behind": self._switched_behind,
            "asked": self._asked,
            "largest": self._largest,
        }
        return {**so_far, "current": self.current.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._asked, self._largest = state["asked"], state["largest"]
        self._switched_behind = state["behind"]
        if self.switched != state["switched"]:
            self._leave()
            self._use(state["switched"])
            self.current.drain()
        self.current.load_state_dict(state["current"])


# --- equal workers ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def _make_equal(replica: Replica, comm: Comm) -> None:
    """Every floating tensor that differs between workers becomes its mean over all of them."""
    _fill_in(replica.optimizers, comm)
    parameters = replica.optimizers.parameters
    tensors: list[Tensor] = [*replica.model.parameters(), *replica.model.buffers(), *parameters]
    states = _states(replica.optimizers)
    tensors = [*dict.fromkeys(t for t in tensors if _is_floating(t)), *(states[place] for place in sorted(states))]
    checks = comm.gather_bytes(b"".join(map(_check, tensors)), _VOTES)
    for index, tensor in enumerate(tensors):
        if len({check[4 * index : 4 * index + 4] for check in checks}) > 1:
            wide = torch.promote_types(tensor.dtype, torch.float64)
            total = tensor.detach().to(wide, memory_format=torch.contiguous_format, copy=True)
            comm.all_reduce(total, tag="weights/switch")
            tensor.copy_(total.div_(comm.size))


def _fill_in(optimizers: Optimizers, comm: Comm) -> None:
    """State that only others have, since this worker never had a gradient there, begins at zero."""
    mine = _states(optimizers)
    looks = {place: [*place, *_look(state)] for place, state in mine.items()}
    parameters = optimizers.parameters
    for row in comm.gather_bytes(json.dumps(list(looks.values())).encode(), _VOTES):
        for index, key, dtype, shape, device in json.loads(row):
            if (index, key) not in mine:
                where = parameters[index].device if device != "cpu" else device
                state = optimizers.state_to_write(parameters[index])
                state[key] = torch.zeros(shape, dtype=getattr(torch, dtype), device=where)


def _states(optimizers: Optimizers) -> dict[tuple[int, str], Tensor]:
    """What the optimizers remember in floating tensors, by parameter and name."""
    parameters = enumerate(optimizers.parameters)
    items = [((i, key), value) for i, p in parameters for key, value in optimizers.state(p).items()]
    return {place: value for place, value in items if isinstance(value, Tensor) and _is_floating(value)}


def _look(tensor: Tensor) -> tuple[str, list[int], str]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.device.type


def _is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _check(tensor: Tensor) -> bytes:
    """Four bytes that tell one content from another."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(content.numpy().data).to_bytes(4, "big")
