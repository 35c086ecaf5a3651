"""A user's own task, as `--task own_task:make_task` finds it: mirrored at random, with a network of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tutti.data.augment import flip
from tutti.tasks.base import Data, Split, Task


@dataclass
class Stripes(Task):
    """Is the bright column left or right of the middle? (Only its distance survives mirroring.)"""

    def load(self, folder: Path | None = None) -> Data:
        places = torch.arange(120) % 8
        images = nn.functional.one_hot(places, 8).float().view(120, 1, 1, 8).expand(120, 1, 8, 8).contiguous()
        targets = ((places == 3) | (places == 4)).long()
        return Data(Split(images, targets), Split(images, targets), (1, 8, 8), 2)

    def make_model(self, data: Data) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

    @property
    def chances(self) -> int:
        return 1

    def augment(self, inputs: Tensor, chances: Tensor) -> Tensor:
        return flip(inputs, chances[:, 0])


def make_task() -> Task:
    return Stripes()


@dataclass
class SlowStripes(Stripes):
    """The same on a worker that takes its time for every batch to train on."""

    def augment(self, inputs: Tensor, chances: Tensor) -> Tensor:
        time.sleep(0.02)
        return super().augment(inputs, chances)


def make_slow_task() -> Task:
    return SlowStripes()


def make_something_else() -> str:
    return "a task"


def make_empty() -> Task:
    return Task()


def break_down() -> Task:
    raise LookupError("no data today")


NO_FUNCTION = 3
