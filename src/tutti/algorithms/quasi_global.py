"""Momentum from what all workers did: each keeps a running mean of the way its weights went, neighbours included.

    v_i <- beta m_i + g_i                          Nesterov: v_i <- g_i + beta (beta m_i + g_i)
    y_i <- x_i - lr v_i
    z_i <- agree(y_1 ... y_n)                      the new weights
    m_i <- mu m_i + (1 - mu) (x_i - z_i) / lr      zero at the start; with lr = 0 it stays as it is
    rounds and bytes per step: the exchange's, for every bucket of weights

Where data differ, momentum of a worker's own gradients leads it away from the others; m is never sent, and still knows
where all are going. It takes the place of torch.optim.SGD's own momentum: beta, nesterov, weight decay (added to g) and
the learning rate are the optimizer's, as they are at each step, and its buffers become m: those it has at the start are
where m begins, and m is put there at the end; in between it has none. `mu` is beta where none is given. On one
worker it is not ordinary momentum, but a weighted mean of that and plain SGD (quasi-hyperbolic momentum). m takes about
1 / ((1 - mu) (1 - beta)) steps to grow to its size: 100 where both are 0.9, ten times as many as ordinary momentum.

A parameter without a gradient is not moved by this worker, but by agreeing. The state is each worker's own: every
worker saves and loads its `run.state_dict()`. Momentum, and the weights before the step, take twice the memory of the
weights.

Paper: Lin, Karimireddy, Stich, Jaggi, "Quasi-global momentum: accelerating decentralized deep learning on heterogeneous
data" (2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tutti.algorithms.base import OwnSteps
from tutti.comm.base import Lane
from tutti.errors import UserError
from tutti.replica import Bucket, Replica
from tutti.spec import Range


@dataclass
class QuasiGlobal(OwnSteps):
    mu: Annotated[float, Range(least=0, most=1)] | None = None

    def setup(self, replica: Replica, lane: Lane) -> None:
        for optimizer in replica.optimizers.every:
            _check(optimizer)
        super().setup(replica, lane)
        self._before = [torch.zeros_like(bucket.weights) for bucket in replica.buckets]
        self._settings: dict[int, dict[str, Any]] = {}
        for bucket in replica.buckets:
            for parameter, momentum in _views(bucket, self._memory[bucket.index]):
                own = replica.optimizers.pop_state(parameter).get("momentum_buffer")
                if own is not None:
                    momentum.copy_(own)

    def step(self, replica: Replica) -> None:
        try:
            super().step(replica)
        finally:
            for bucket in replica.buckets:
                for parameter in bucket.parameters:
                    replica.optimizers.pop_state(parameter)

    def _note(self, bucket: Bucket) -> None:
        """SGD's own step computes v, with m for its buffer: a copy, since it writes there. The settings are taken down
        here: while the lane is at work, the optimizer's may be those of the next bucket."""
        self._settings[bucket.index] = settings = self._replica.settings_of(bucket) or {}
        self._before[bucket.index].copy_(bucket.weights)
        lent = self._rooms[bucket.index][: bucket.layout.numel]
        _hand_over(self._replica, bucket, lent.copy_(self._memory[bucket.index]), settings)

    def _meet(self, bucket: Bucket) -> None:
        self._rooms[bucket.index][: bucket.layout.numel] = bucket.weights
        agreed = self._agree(bucket)
        bucket.weights.copy_(agreed)
        settings = self._settings[bucket.index]
        lr, beta = float(settings.get("lr", 0)), settings.get("momentum", 0)
        mu = beta if self.mu is None else self.mu
        if lr != 0:
            way = self._before[bucket.index].sub_(agreed)
            self._memory[bucket.index].mul_(mu).add_(way, alpha=(1 - mu) / lr)

    def close(self) -> None:
        for bucket in self._replica.buckets:
            settings = self._replica.settings_of(bucket) or {}
            _hand_over(self._replica, bucket, self._memory[bucket.index], settings)


def _check(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    if kind is not torch.optim.SGD:
        raise UserError(f"'quasi-global' has a momentum of its own for torch.optim.SGD, not {kind.__name__}; use SGD")
    for setting in ("dampening", "maximize"):
        if any(group[setting] for group in optimizer.param_groups):
            raise UserError(f"'quasi-global' knows no {setting}, which is set in the optimizer; use SGD without it")


def _hand_over(replica: Replica, bucket: Bucket, momentum: Tensor, settings: dict[str, Any]) -> None:
    """Let the optimizer have this for its buffers, where it uses any."""
    if settings.get("momentum"):
        for parameter, view in _views(bucket, momentum):
            replica.optimizers.state_to_write(parameter)["momentum_buffer"] = view


def _views(bucket: Bucket, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter, and its part of a flat tensor."""
    return zip(bucket.parameters, (piece.view(flat) for piece in bucket.layout.slices), strict=True)
