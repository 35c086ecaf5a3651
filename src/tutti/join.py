"""`with run.join():` for workers that have different numbers of batches.

Before the gradients of a step are exchanged, every worker says whether its loop goes on (one byte to all, counted as
control traffic). A worker whose loop has ended goes on exchanging with no samples and no gradient of its own, so that
the other workers' step is the mean over those that still train. When the last loop has ended all workers leave.

What a finished worker does in the meantime:

- gradients: its contribution weighs nothing (`run.samples = 0`), and its optimizer does not step: what the others do
  with the gradient, such as clipping, is not known here. At the end of the block it gets weights and optimizer state
  from a worker that trained to the end (where all workers make the same step, `Algorithm.same_steps`).
- models: it makes no step of its own. Where models are averaged by samples it weighs nothing and gets the average; with
  gossip, relay and push-sum, which do not count samples, it takes part with its weights. Its optimizer's state is its
  own and stays as it is.
- buffers: broadcast by the lowest worker that still trains, or averaged over those that do.
- hyper-parameters: those of the lowest worker that still trains, until the end of the block (algorithms that need the
  learning rate, such as quasi-global, compute with them). Its own scheduler is not stepped; `missed` says how often the
  other workers stepped without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Comm
from tutti.consensus import by_type
from tutti.errors import UserError
from tutti.optimizers import Optimizers
from tutti.replica import Replica

_TAG = "control/join"
Settings = list[dict[str, Any]]  # the hyper-parameters of every group


class Join:
    """The joins of one run, one after another."""

    def __init__(self, algorithm: Algorithm, replica: Replica, comm: Comm, step: Callable[[], None]) -> None:
        self._algorithm, self._replica, self._comm, self._step = algorithm, replica, comm, step
        self._open = self._finished = False
        self.training = self._everyone()  # the workers whose loop goes on
        self.missed = 0  # steps that the other workers made after this worker's loop had ended, in the last block

    @property
    def partial(self) -> bool:
        """Whether a worker takes part with nothing now: its weights may be old until the block ends."""
        return len(self.training) < self._comm.size

    @contextmanager
    def hold(self) -> Iterator[Join]:
        self._check()
        self.missed = 0
        if self._comm.size == 1:
            yield self
            return
        self._compare_settings()
        self._open = True
        try:
            yield self
            self._take_part_until_all_end()
        finally:
            self._open = self._finished = False
            self.training = self._everyone()

    def before_exchange(self) -> None:
        """This worker has a step to make."""
        if not self._open or self._finished:
            return
        if self._replica.exchanged:
            raise UserError(
                "inside run.join() only one backward of a step exchanges gradients; put all but the last one into "
                "run.accumulate()"
            )
        self._vote(True)

    def before_change(self, what: str) -> None:
        """What this worker trains has changed, and is to be taken in: by all workers, or by none."""
        if not self._open:
            return
        if not self._finished:
            self._vote(True)
        if self.partial:
            raise UserError(
                f"{what}, inside run.join(), where the loops of some workers have ended and cannot take it in; change "
                "it before the block"
            )

    def refuse_one_of(self, optimizer: torch.optim.Optimizer | None) -> None:
        """A worker whose loop has ended does not know which optimizer the others step with."""
        several = len(self._replica.optimizers.every) > 1
        if self._open and optimizer is not None and several and not self._algorithm.same_steps:
            raise UserError(
                f"inside run.join() '{self._algorithm}' steps with all optimizers: call run.step(), or use ddp"
            )

    def refuse(self, what: str) -> None:
        """What all workers have to call has no place inside, where some are not there to call it."""
        if self._open:
            raise UserError(
                f"{what} inside run.join() would wait for workers whose loop has ended; call it after the block"
            )

    def refuse_scaler(self, scaler: torch.amp.GradScaler | None) -> None:
        if self._open and scaler is not None and scaler.is_enabled():
            raise UserError(
                "run.join() cannot keep the scale of a GradScaler up to date on workers whose loop has ended; use "
                "bfloat16 autocast, which needs none, or the same number of batches on every worker"
            )

    # --- the block ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._open:
            raise UserError("run.join() inside run.join(): one block around the whole loop is enough")
        if self._algorithm.no_join:
            raise UserError(f"run.join() does not work with '{self._algorithm}': {self._algorithm.no_join}")

    def _take_part_until_all_end(self) -> None:
        if self._replica.exchanged:
            raise UserError("the last backward inside run.join() has no run.step(); call it before the block ends")
        replica, settings = self._replica, self._replica.optimizers.plain_settings()
        samples, replica.samples, self._finished = replica.samples, 0.0, True
        try:
            last = self.training
            while self._vote(False):
                last = self.training
                self._take_part()
                self.missed += 1
        finally:
            replica.samples = samples
            _write(replica.optimizers, settings)
        if len(last) < self._comm.size and self._algorithm.same_steps:
            self._algorithm.drain()
            _hand_over(replica, self._comm, root=last[0])

    def _take_part(self) -> None:
        self._replica.finish()
        self._forget()  # the gradient of the others, which they may clip
        self._step()
        self._forget()  # or this worker's next backward would add to it

    def _forget(self) -> None:
        for bucket in self._replica.buckets:
            bucket.forget()

    # --- messages ----------------------------------------------------------------------------------------------------

    def _vote(self, trains: bool) -> bool:
        """Whether any worker still trains."""
        votes = torch.zeros(self._comm.size, 1, dtype=torch.uint8)
        self._comm.all_gather(torch.tensor([trains]).byte(), votes, _TAG)
        self.training = [rank for rank, vote in enumerate(votes[:, 0].tolist()) if vote]
        if self.training and self.partial:
            self._share_settings(self.training[0])
        return bool(self.training)

    def _share_settings(self, root: int) -> None:
        mine = json.dumps(self._replica.optimizers.plain_settings()).encode() if self._comm.rank == root else b""
        settings = self._comm.gather_bytes(mine, _TAG)[root]
        if self._finished:
            _write(self._replica.optimizers, json.loads(settings))

    def _compare_settings(self) -> None:
        """Workers that make the same step make it with the same settings; a scheduler stepped less often shows here."""
        if not self._algorithm.same_steps:
            return
        rows = self._comm.gather_bytes(json.dumps(self._replica.optimizers.plain_settings()).encode(), _TAG)
        first = json.loads(rows[0])
        for rank, row in enumerate(rows):
            for name, mine, theirs in _differences(json.loads(row), first):
                raise UserError(
                    f"the optimizer's {name} is {theirs} on worker 0 and {mine} on worker {rank}: a worker that "
                    "finished earlier in run.join() has to step its scheduler as often as the others (`with run.join() "
                    "as joined: ...`, then joined.missed more times)"
                )

    def _everyone(self) -> list[int]:
        return list(range(self._comm.size))


# --- hyper-parameters ------------------------------------------------------------------------------------------------


def _write(optimizers: Optimizers, settings: Settings) -> None:
    for group, values in zip(optimizers.groups, settings, strict=True):
        for key, value in values.items():
            own = group.get(key)
            if isinstance(own, Tensor):
                own.fill_(value)
            else:
                group[key] = tuple(value) if isinstance(own, tuple) else value


def _differences(mine: Settings, others: Settings) -> Iterator[tuple[str, Any, Any]]:
    for one, other in zip(mine, others, strict=True):
        yield from ((key, one.get(key), other.get(key)) for key in one | other if one.get(key) != other.get(key))


# --- weights and optimizer state -------------------------------------------------------------------------------------


@torch.no_grad()
def _hand_over(replica: Replica, comm: Comm, root: int) -> None:
    """The root's weights and optimizer state, on every worker."""
    for bucket in replica.buckets:
        comm.broadcast(bucket.weights, root, "weights/join")
    for same in by_type(_make_alike(replica.optimizers, comm, root)):
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        comm.broadcast(flat, root, "weights/join")
        for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def _make_alike(optimizers: Optimizers, comm: Comm, root: int) -> list[Tensor]:
    """Give the optimizer the same state as the root's, but for what stands in its tensors, which are returned."""
    parameters = optimizers.parameters
    mine = [_describe(optimizers, p) for p in parameters] if comm.rank == root else []
    looks = json.loads(comm.gather_bytes(json.dumps(mine).encode(), _TAG)[root])
    tensors: list[Tensor] = []
    for parameter, look in zip(parameters, looks, strict=True):
        old = optimizers.pop_state(parameter)
        state = {key: _make(old.get(key), entry, parameter) for key, entry in look.items()}
        if state:
            optimizers.state_to_write(parameter).update(state)
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return tensors


def _describe(optimizers: Optimizers, parameter: nn.Parameter) -> dict[str, Any]:
    look: dict[str, Any] = {}
    for key, value in optimizers.state(parameter).items():
        if isinstance(value, Tensor):
            look[key] = [str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type]
        elif value is None or isinstance(value, (bool, int, float, str)):
            look[key] = {"value": value}
        else:
            raise UserError(
                f"run.join() cannot hand '{key}' of the optimizer's state over, which is neither a tensor nor a number"
            )
    return look


def _make(old: Any, look: Any, parameter: Tensor) -> Any:
    if isinstance(look, dict):
        return look["value"]
    dtype, shape, device = getattr(torch, look[0]), look[1], "cpu" if look[2] == "cpu" else parameter.device
    fits = isinstance(old, Tensor) and old.dtype == dtype and list(old.shape) == shape and old.device.type == look[2]
    return old if fits else torch.zeros(shape, dtype=dtype, device=device)
