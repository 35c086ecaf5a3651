"""What every worker does for a benchmark: for each size warm up, check, let the routes take turns, and check again.

A sample is a row of operations behind a barrier of our own, as long as the slowest worker took for it, divided by
their number. The routes take turns sample by sample, each turn beginning with another one, so that whatever else
happens on the machine meets all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch

from tutti.collectives.base import Collective
from tutti.comm.base import Comm
from tutti.lab.bench.contents import Contents
from tutti.lab.bench.plan import Plan, choose_repeats, choose_samples, count_elements, dtype_of
from tutti.launch import Report
from tutti.spec import parse

_TAG = "gradients/bench"
_WARM_UP = 2  # behind the first, which is checked
_COPIES, _COPIED = 5, 2**22  # how often, and bytes copied in a row at least


@dataclass(frozen=True)
class Measured:
    """One route at one size."""

    op: str
    route: str
    dtype: str
    bytes: int
    repeats: int  # operations in a row per sample
    times: list[float]  # one per sample: seconds of an operation on the slowest worker
    correct: bool
    copy: float  # seconds in which all workers at once copy a buffer of this size


def measure(comm: Comm, report: Report, plan: Plan) -> list[dict[str, Any]]:
    """Everything, as plain data on worker 0."""
    found: list[Measured] = []
    for operation, names in plan.routes.items():
        routes = {name: parse(name, Collective) for name in names}
        for route in routes.values():
            route.prepare(comm)
        for dtype, nbytes in product(plan.dtypes, plan.sizes):
            report({"event": "point", "op": operation, "dtype": dtype, "bytes": nbytes})
            found += _Point(comm, operation, routes, dtype, nbytes).measure(plan)
    return [asdict(each) for each in found]


def take_turn(names: Sequence[str], turn: int) -> list[str]:
    """All of them, each turn beginning with the next one."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


class _Point:
    """One operation, dtype and size on this worker."""

    def __init__(self, comm: Comm, operation: str, routes: dict[str, Collective], dtype: str, nbytes: int) -> None:
        self._comm, self._operation, self._routes, self._dtype = comm, operation, routes, dtype
        kind = dtype_of(dtype)
        self._contents = Contents(count_elements(nbytes, kind, comm.size), kind, comm.size)
        self._start = self._contents.of(comm.rank)
        self._buffer = comm.zeros(self._start.numel(), kind, self._start.device)

    def measure(self, plan: Plan) -> list[Measured]:
        names = list(self._routes)
        right = [self._is_right(name) for name in names]
        estimates = [min(self._slowest([self._time(name, 1) for _ in range(_WARM_UP)])) for name in names]
        repeats = choose_repeats(min(estimates))
        samples = plan.samples or choose_samples(repeats * sum(estimates), plan.seconds * len(names))
        times: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(samples):
            for name in take_turn(names, turn):
                times[name].append(self._time(name, repeats))
        right = [before and self._is_right(name) for before, name in zip(right, names, strict=True)]
        common: dict[str, Any] = {
            "op": self._operation,
            "dtype": self._dtype,
            "bytes": self._buffer.nbytes,
            "repeats": repeats,
        }
        common["copy"] = self._copy_seconds()
        return [
            Measured(route=name, times=self._slowest(times[name]), correct=good, **common)
            for name, good in zip(names, right, strict=True)
        ]

    def _is_right(self, name: str) -> bool:
        """Whether one operation leaves on every worker what it should."""
        self._buffer.copy_(self._start)
        self._comm.barrier()
        self._routes[name].perform(self._operation, self._comm, self._buffer, _TAG)
        right = self._contents.is_right(self._operation, self._comm.rank, self._buffer)
        return max(self._slowest([float(not right)])) == 0

    def _time(self, name: str, repeats: int) -> float:
        route, operation, comm, buffer = self._routes[name], self._operation, self._comm, self._buffer
        buffer.copy_(self._start)  # or sums would grow without end
        comm.barrier()
        begun = comm.clock.now()
        for _ in range(repeats):
            route.perform(operation, comm, buffer, _TAG)
        return (comm.clock.now() - begun) / repeats

    def _copy_seconds(self) -> float:
        comm, seconds = self._comm, []
        in_a_row = max(1, min(100, _COPIED // self._buffer.nbytes))
        for _ in range(_COPIES):
            comm.barrier()
            begun = comm.clock.now()
            for _ in range(in_a_row):
                self._buffer.copy_(self._start)
            seconds.append((comm.clock.now() - begun) / in_a_row)
        return min(self._slowest(seconds))

    def _slowest(self, values: list[float]) -> list[float]:
        """The largest value of all workers, at every place."""
        mine = torch.tensor(values, dtype=torch.float64)
        rows = mine.new_empty((self._comm.size, len(values)))
        self._comm.all_gather(mine, rows)
        return [float(value) for value in rows.amax(0)]
