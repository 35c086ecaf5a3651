"""What a benchmark measures: plain data, since it travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tutti.collectives.base import Collective
from tutti.errors import UserError
from tutti.lab.routes import ALL, find_operations, find_routes, read_routes
from tutti.spec import parse

DTYPES: Final = ("float32", "float64", "float16", "bfloat16")
LEAST_SAMPLES, MOST_SAMPLES = 5, 200
ROW_SECONDS, MOST_REPEATS = 2e-3, 20  # short operations are timed several in a row, until they take about so long


@dataclass(frozen=True)
class Plan:
    """Every operation with every dtype at every size, over the routes of that operation."""

    routes: dict[str, tuple[str, ...]]  # by operation
    sizes: tuple[int, ...]  # bytes of the whole buffer
    dtypes: tuple[str, ...]
    seconds: float  # for a route at a size: as many samples as fit
    samples: int | None = None  # or so many

    @property
    def points(self) -> int:
        return len(self.routes) * len(self.dtypes) * len(self.sizes)

    def check(self, workers: int) -> None:
        if workers == 1:
            raise UserError("one worker sends nothing, by any route: there is something to measure from --workers 2 on")
        for name in {name for names in self.routes.values() for name in names}:
            parse(name, Collective).check(workers)
        for dtype in self.dtypes:
            least = workers * dtype_of(dtype).itemsize
            if self.sizes[0] < least:
                raise UserError(
                    f"--sizes begin at {self.sizes[0]} bytes; {workers} workers with a {dtype} each take {least}"
                )


def plan_routes(operations: Sequence[str], asked: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By operation. One that is named must be offered by all routes that are; `all` takes what each of them offers."""
    found: dict[str, tuple[str, ...]] = {}
    for operation in find_operations(operations):
        every = ALL in operations
        routes = [r for r in read_routes(asked) if r.offers(operation)] if every else find_routes(operation, asked)
        if routes:
            found[operation] = tuple(route.name for route in routes)
    return found


def find_dtypes(asked: Sequence[str]) -> tuple[str, ...]:
    """Each once."""
    for name in asked:
        if name not in DTYPES:
            raise UserError(f"there is no dtype '{name}' to be summed; there is {', '.join(DTYPES)}")
    return tuple(dict.fromkeys(asked))


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def count_elements(nbytes: int, dtype: torch.dtype, workers: int) -> int:
    """As many as fit into the bytes, and as many for every worker, as nccl-tests does."""
    return nbytes // (workers * dtype.itemsize) * workers


def choose_repeats(fastest: float) -> int:
    """How often in a row, from the seconds of the fastest route: the same for all routes of a size."""
    return max(1, min(MOST_REPEATS, round(ROW_SECONDS / max(fastest, 1e-9))))


def choose_samples(turn: float, budget: float) -> int:
    """How many turns of all routes fit into the budget, both in seconds."""
    return max(LEAST_SAMPLES, min(MOST_SAMPLES, int(budget / max(turn, 1e-9))))
