"""The contract of a route: make everybody's buffer the sum of all, in place.

Some routes have other operations beside it (`OPERATIONS`). A route where whole contributions meet (`meets`) may be
handed another way to combine them than the sum; on the others only partial sums travel. Every operation works in place
on a one-dimensional buffer, which `pieces` cuts into one piece per worker where an operation speaks of pieces. `cost`
is what a test checks on the metered wire and what the reports print.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from tutti.comm.base import Comm
from tutti.comm.rehearsal import Rehearsal
from tutti.errors import UserError
from tutti.spec import Member

Combine = Callable[[Tensor], Tensor]  # a row per worker -> what all of them get

OPERATIONS: Final = (
    "all-reduce",
    "reduce",
    "broadcast",
    "reduce-scatter",
    "all-gather",
    "gather",
    "scatter",
    "all-to-all",
)


@dataclass(frozen=True)
class Cost:
    """What an operation takes on links that all have the same latency and bandwidth.

    `rounds`: messages that wait for one another. `busiest`: bytes in one direction on the busiest worker's link.
    `total`: bytes sent by all workers. `path`: bytes that pass one after another, the busiest link's and those it has
    to wait for.
    """

    rounds: int
    busiest: float
    total: float
    path: float

    def seconds(self, latency: float, bandwidth: float) -> float:
        """In the α–β model; bandwidth in bytes per second."""
        return self.rounds * latency + self.path / bandwidth


NOTHING: Final = Cost(0, 0, 0, 0)


class Load(NamedTuple):
    """What one worker sends and receives, as multiples of the buffer's bytes."""

    sent: float
    received: float


def add_up(rows: Tensor) -> Tensor:
    """The combination every route can do."""
    return torch.sum(rows, 0)


def pieces(buffer: Tensor, size: int) -> tuple[Tensor, ...]:
    """One piece per worker, as equal as they can be, the longer ones first."""
    return buffer.tensor_split(size)


def bounds(buffer: Tensor, size: int) -> list[int]:
    """Where each of the pieces begins, and where the last one ends: pieces i to j-1 are buffer[bounds[i]:bounds[j]]."""
    length, longer = divmod(buffer.numel(), size)
    return [k * length + min(k, longer) for k in range(size + 1)]


def count_segments(nbytes: float, most: int) -> int:
    """How many equal segments of at most so many bytes a buffer is cut into."""
    return max(1, math.ceil(nbytes / most))


def check_divides(buffer: Tensor, size: int) -> None:
    if buffer.numel() % size:
        raise UserError(f"all-to-all over {size} workers needs a multiple of {size} elements, not {buffer.numel()}")


def check_segment(route: Collective, segment: int) -> None:
    if segment < 8:
        raise ValueError(f"segment of '{route.name}' must be at least 8 bytes, not {segment}")


@dataclass
class Collective(Member):
    """One route. `meets`: whole contributions meet somewhere, so any combination works there."""

    axis: ClassVar[str] = "collectives"
    noun: ClassVar[str] = "collective"
    meets: ClassVar[bool] = False
    operations: ClassVar[tuple[str, ...]] = ("all-reduce",)  # what this route can do, out of OPERATIONS

    @abstractmethod
    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        """All-reduce: combine everybody's buffer; all workers end with the same one."""

    @abstractmethod
    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        """What an operation of this route takes for a buffer of so many bytes over so many workers."""

    def loads(self, size: int, operation: str = "all-reduce") -> list[Load]:
        """What each worker sends and receives (for a root: worker 0), counted in a rehearsal."""
        loads = []
        for rank in range(size):
            comm = Rehearsal(rank, size)
            buffer = torch.empty(12 * size, device="meta")  # can be cut into equal pieces, and these into equal parts
            self.perform(operation, comm, buffer, "control/rehearsal")
            loads.append(Load(comm.sent / buffer.nbytes, comm.received / buffer.nbytes))
        return loads

    def perform(self, operation: str, comm: Comm, buffer: Tensor, tag: str) -> None:
        """An operation by its name, with worker 0 as the root."""
        method = self.run if operation == "all-reduce" else getattr(self, operation.replace("-", "_"))
        method(comm, buffer, tag)

    def prepare(self, comm: Comm) -> None:
        """Make what the route needs before the first run (all workers call this together)."""
        self.check(comm.size)

    def reduce(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        """The root's buffer becomes the sum of all; the others' hold nothing of use."""
        raise self.lacks("reduce")

    def broadcast(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        """The root's buffer, everywhere."""
        raise self.lacks("broadcast")

    def reduce_scatter(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        """Worker i's piece i becomes the sum of all pieces i; its other pieces hold nothing of use."""
        raise self.lacks("reduce-scatter")

    def all_gather(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        """Everybody's piece i becomes worker i's."""
        raise self.lacks("all-gather")

    def gather(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        """The root's piece i becomes worker i's."""
        raise self.lacks("gather")

    def scatter(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        """Worker i's piece i becomes the root's."""
        raise self.lacks("scatter")

    def all_to_all(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        """Worker j's piece i becomes worker i's piece j; the number of elements must divide by that of workers."""
        raise self.lacks("all-to-all")

    def lacks(self, operation: str) -> UserError:
        return UserError(f"'{self}' has no {operation}, only {', '.join(self.operations)}")
