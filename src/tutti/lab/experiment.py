"""Experiments: many runs on different networks, each record on disk before the next begins, with the time that is left.

What is finished is never done again: the same command goes on where it was stopped.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutti.clock import Clock
from tutti.lab.record import Record
from tutti.lab.run import Audience, Entry, finished, run_once
from tutti.lab.units import format_seconds
from tutti.launch import LaunchOptions, WorkerFunction
from tutti.networks.base import Fabric, Network
from tutti.spec import parse
from tutti.tasks.base import find_task
from tutti.train import Plan, train


@dataclass(frozen=True)
class Job:
    """One run: what, on which work, over which network. Its name is that of its record, unique in the experiment."""

    name: str
    spec: str
    plan: Plan
    workers: int
    network: str = "loopback"
    function: WorkerFunction[Any] = train  # called with spec, plan and `args`; returns what `train` does
    args: tuple[Any, ...] = ()

    @property
    def cost(self) -> float:
        """Samples that one worker goes through: what the time left is estimated by."""
        steps = self.plan.steps or (self.plan.epochs or 1) * 100
        return steps * self.plan.global_batch / self.workers


class Results:
    """The records of an experiment by the job's name, one per repetition."""

    def __init__(self, records: dict[str, list[Record]]) -> None:
        self._records = records

    def __getitem__(self, name: str) -> list[Record]:
        return self._records[name]

    def __iter__(self) -> Any:
        return iter(self._records)

    def all(self) -> list[Record]:
        return [record for records in self._records.values() for record in records]

    def median(self, name: str, figure: Callable[[Record], float]) -> float:
        return statistics.median(map(figure, self._records[name]))


def run_jobs(jobs: list[Job], repeats: int, out: Path, audience: Audience) -> Results:
    """Every job as often as asked for, the whole round before the next one; every second round backwards."""
    rounds = [(number, job) for number in range(repeats) for job in (jobs if number % 2 == 0 else jobs[::-1])]
    progress = _Progress([job.cost for _, job in rounds])
    records: dict[str, list[Record]] = {job.name: [] for job in jobs}
    with ExitStack() as stack:
        fabrics = _Fabrics(jobs, stack)
        for index, (number, job) in enumerate(rounds):
            path = out / f"{job.name}-{number + 1}.json"
            record = finished(path, job.spec, job.plan, job.network)
            if record is None:
                audience.start(job.name, progress.left(index), index + 1, len(rounds))
                record = progress.timed(index, lambda job=job: _run(job, fabrics, audience))  # type: ignore[misc]
                record.save(path)
            audience.done(record)
            records[job.name].append(record)
    return Results(records)


def _run(job: Job, fabrics: _Fabrics, audience: Audience) -> Record:
    options = LaunchOptions(job.workers, preload=find_task(job.plan.task).modules)
    options = dataclasses.replace(options, fabric=fabrics.get(job.network))
    if job.network == "loopback":
        options = dataclasses.replace(options, threads=1)
    entry = Entry.read(job.spec, job.name)
    record = run_once(entry, job.plan, options, audience.event, job.function, job.args)
    assert record is not None, "an experiment starts its own workers"
    return record


class _Fabrics:
    """Networks that are set up when the first job needs them and stay until the last is done."""

    def __init__(self, jobs: list[Job], stack: ExitStack) -> None:
        self._workers = {job.network: max(j.workers for j in jobs if j.network == job.network) for job in jobs}
        self._stack = stack
        self._open: dict[str, Fabric] = {}

    def get(self, network: str) -> Fabric:
        if network not in self._open:
            opened = parse(network, Network).open(self._workers[network])
            self._open[network] = self._stack.enter_context(opened)
        return self._open[network]


class _Progress:
    """How long the jobs that are left will take, from how long the others took."""

    def __init__(self, costs: list[float]) -> None:
        self._costs, self._clock = costs, Clock()
        self._spent: list[tuple[float, float]] = []  # cost and seconds of jobs that were run

    def timed(self, index: int, function: Callable[[], Record]) -> Record:
        begun = self._clock.now()
        record = function()
        self._spent.append((self._costs[index], self._clock.now() - begun))
        return record

    def left(self, index: int) -> str:
        if not self._spent:
            return ""
        rate = sum(seconds for _, seconds in self._spent) / sum(cost for cost, _ in self._spent)
        return f"about {format_seconds(rate * sum(self._costs[index:]))} left"
