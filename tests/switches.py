"""What runs that switch are tried with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from training import (
    set_up,
    train,
    weights,
)

from tutti.algorithms.base import Algorithm
from tutti.algorithms.switch import Switch
from tutti.comm.base import Comm, Lane
from tutti.engine import Run
from tutti.replica import Replica

AT, END = 3, 6  # behind which step to switch, and how many there are

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass
class OnItsOwn(Algorithm):
    """Every worker trains for itself."""

    equal: ClassVar[bool] = False
    buffers: ClassVar[Literal["broadcast", "average", "local"]] = "local"

    def setup(self, replica: Replica, lane: Lane) -> None:
        replica.make_buckets(0, self.on_bucket)


def current(run: Run) -> Algorithm:
    assert isinstance(run.algorithm, Switch)
    return run.algorithm.current


def train_and_look(run: Run, steps: range) -> list[Tensor]:
    """The weights after every step."""
    found = []
    for step in steps:
        train(run, range(step, step + 1))
        run.algorithm.drain()
        found.append(weights(run.replica.model))
    return found


def switched(comm: Comm, one: str, other: str, optimizer: Optimizer) -> list[Tensor]:
    with set_up(comm, f"switch({AT}, {one}, {other})", optimizer=optimizer) as run:
        return train_and_look(run, range(END))


def set_rate(run: Run, rate: float) -> None:
    run.replica.optimizer.param_groups[0]["lr"] = rate
