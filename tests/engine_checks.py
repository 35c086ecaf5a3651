"""What the tests of the engine have in common: a run alone, its lanes, and a model with everything peculiar in it."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from training import (
    normed_model,
    seeded,
    set_up,
)

from tutti.comm.threads import World
from tutti.engine import Run


def alone(algorithm: str = "ddp", model: nn.Module | None = None) -> Run:
    return set_up(World(1).comm(0), algorithm, model)


def lanes() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("tutti-lane")}


class Peculiar(nn.Module):
    """Buffers that are saved, buffers that are not, an odd memory format, and a state that is no tensor."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with seeded(seed):
            self.body = normed_model(seed)
            self.register_buffer("saved", torch.randn(3, 2).t())
            self.register_buffer("unsaved", torch.randn(4), persistent=False)
            self.register_buffer("count", torch.tensor(seed))
            self.scale = nn.Parameter(torch.randn(2, 3, dtype=torch.float64).t())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs @ (self.scale @ self.scale.t()))

    def get_extra_state(self) -> Any:
        return {"version": "1.0"}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"version": "1.0"}


def everything(model: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
