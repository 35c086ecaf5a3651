"""What the tests of gradient averaging have in common: its ways to update by bucket, and steps that use them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from training import batch_of, loss_of

from tutti.engine import Run
from tutti.exchanges.base import Exchange

BY_BUCKET = ("update=bucket", "update=bucket, wait=forward")


@dataclass
class Recorder(Exchange):
    """Agrees on what is there, and notes who asked when."""

    notes: list[tuple[Any, ...]] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        on_lane = threading.current_thread().name.startswith("tutti-lane")
        self.notes.append((self.tag, on_lane, step, samples))
        self.began.set()

    def state_dict(self) -> dict[str, Any]:
        return {"of": self.tag}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.notes.append(("loaded", state["of"]))


Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


def plain_step(run: Run, step: int) -> None:
    run.replica.optimizer.zero_grad()
    loss_of(run.model, batch_of(run.rank, step)).backward()
    run.step()


def forked_step(run: Run, step: int) -> None:
    run.replica.model.branch = ("even", "odd")[(run.rank + step) % 2]
    plain_step(run, step)
