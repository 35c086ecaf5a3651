"""The contract of a route: make everybody's buffer the sum of all, in place.

A route where whole contributions meet (`meets`) may be handed another way to combine them than the sum; on the others
only partial sums travel. `cost` is what a test checks on the metered wire and what the reports print.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tutti.comm.base import Comm
from tutti.spec import Member

Combine = Callable[[Tensor], Tensor]  # a row per worker -> what all of them get


@dataclass(frozen=True)
class Cost:
    """Rounds one after another; bytes in one direction on the busiest worker's link; bytes sent by all workers."""

    rounds: int
    busiest: float
    total: float


def add_up(rows: Tensor) -> Tensor:
    """The combination every route can do."""
    return torch.sum(rows, 0)


@dataclass
class Collective(Member):
    """One route. `meets`: whole contributions meet somewhere, so any combination works there."""

    axis: ClassVar[str] = "collectives"
    noun: ClassVar[str] = "collective"
    meets: ClassVar[bool] = False

    @abstractmethod
    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        """Combine everybody's one-dimensional buffer; all workers end with the same one."""

    @abstractmethod
    def cost(self, size: int, nbytes: int) -> Cost:
        """What this route takes for a buffer of so many bytes over so many workers."""

    def prepare(self, comm: Comm) -> None:
        """Make what the route needs before the first run (all workers call this together)."""
