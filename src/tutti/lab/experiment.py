"""Experiments: many runs on different networks, each record on disk before the next begins, with the time that is left.

What is finished is never done again: the same command goes on where it was stopped.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tutti.clock import Clock
from tutti.errors import UserError
from tutti.lab.record import Record
from tutti.lab.run import Audience, Entry, check_all, find_difference, finished, run_once, save_record
from tutti.lab.saving import Saving
from tutti.lab.units import format_seconds
from tutti.launch import LaunchOptions, WorkerFunction
from tutti.networks.base import Fabric, Network
from tutti.spec import parse
from tutti.tasks.base import find_task
from tutti.train import Plan, train

_SOME_SAMPLES = 2000  # of an epoch, where nobody knows


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
    engine: str = "processes"  # threads start faster and will do where no time is measured

    @property
    def takes(self) -> int:
        """How many of the workers the algorithm takes."""
        return Entry.read(self.spec).launch_options(LaunchOptions(self.workers)).workers

    @property
    def program(self) -> str:
        """What runs on every worker, for the record; empty where it is the reference loop."""
        if self.function is train and not self.args:
            return ""
        name = f"{self.function.__module__}.{getattr(self.function, '__qualname__', '')}"
        return f"{name}({', '.join(map(repr, self.args))})"

    @property
    def cost(self) -> float:
        """Samples that one worker goes through: what the time left is estimated by."""
        plan = self.plan
        samples = plan.steps * plan.global_batch if plan.steps else (plan.epochs or 1) * _count_samples(plan)
        return samples / self.takes


def _count_samples(plan: Plan) -> int:
    """Of one epoch, without reading the data."""
    task = find_task(plan.task)
    whole = getattr(getattr(task, "data_set", None), "train", _SOME_SAMPLES)
    there = int(getattr(task, "samples", 0) or whole)
    return there if plan.samples is None else min(there, plan.samples)


class Results:
    """The records of an experiment by the job's name, one per repetition; `|` adds those of others."""

    def __init__(self, records: dict[str, list[Record]]) -> None:
        self._records = records

    def __getitem__(self, name: str) -> list[Record]:
        return self._records[name]

    def __or__(self, others: Results) -> Results:
        return Results({**self._records, **others._records})

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __contains__(self, name: str) -> bool:
        return name in self._records

    def all(self) -> list[Record]:
        return [record for records in self._records.values() for record in records]


class Follows(Protocol):
    """What comes behind the first jobs, for those who cannot know all of them at the beginning."""

    def more(self, results: Results) -> list[Job]:
        """What else to run, from what has been found so far; nothing where all is done."""

    def ahead(self, results: Results, jobs: list[Job]) -> list[Job]:
        """What is likely to follow when these jobs are done too: for the time that is left."""


def run_jobs(
    jobs: list[Job],
    repeats: int,
    out: Path,
    audience: Audience,
    fresh: bool = False,
    follows: Follows | None = None,
    saving: Saving | None = None,
) -> Results:
    """Every job as often as asked for, the whole round before the next one; every second round backwards. Then what
    follows from their records, in the same way.

    What is finished already is kept, or, for a fresh start, removed once it is clear that all jobs can be run.
    """
    results, progress = Results({}), _Progress(Clock())
    while jobs:
        ahead = follows.ahead(results, jobs) if follows else []
        results |= _Round(jobs, repeats, out, fresh).run(audience, progress, ahead, saving)
        jobs = follows.more(results) if follows else []
    return results


class _Round:
    """Jobs that do not depend on each other."""

    def __init__(self, jobs: list[Job], repeats: int, out: Path, fresh: bool) -> None:
        self._jobs, self._repeats, turns = jobs, repeats, _plan_turns(jobs, repeats, out)
        self._notes: list[str] = []  # why what was run before is run again
        self._turns = [(job, *self._find_place(job, path, fresh)) for job, path in turns]
        for job in {job.name: job for job, _, kept in self._turns if kept is None}.values():
            options = LaunchOptions(job.workers, job.engine)
            check_all([Entry.read(job.spec)], job.plan, options, parse(job.network, Network))
        if fresh:
            for _, path, _ in self._turns:
                path.unlink(missing_ok=True)

    def _find_place(self, job: Job, path: Path, fresh: bool) -> tuple[Path, Record | None]:
        """Where the record is or goes, and what is kept: a record of the same job made under the same conditions."""
        place, record = _find_place(job, path)
        if record is None or fresh:
            return place, None
        options = _options(job, parse(job.network, Network).outline(job.workers))
        differs = find_difference(record, Entry.read(job.spec).launch_options(options))
        if differs:
            self._notes.append(f"{place.name} {differs}: run again")
        return place, None if differs else record

    def run(self, audience: Audience, progress: _Progress, ahead: list[Job], saving: Saving | None = None) -> Results:
        records: dict[str, list[Record]] = {job.name: [] for job in self._jobs}
        for note in self._notes:
            audience.note(note)
        costs = [job.cost if kept is None else 0.0 for job, _, kept in self._turns]
        later = self._repeats * sum(job.cost for job in ahead)
        count = progress.done + len(self._turns) + self._repeats * len(ahead)
        with ExitStack() as stack:
            fabrics = _Fabrics(self._jobs, stack)
            for index, (job, path, kept) in enumerate(self._turns):
                progress.done += 1
                if kept is None:
                    audience.start(job.name, progress.left(sum(costs[index:]) + later), progress.done, count)
                    with progress.timed(job.cost):
                        record = _run(job, fabrics, audience)
                    save_record(record, path, audience, saving)
                else:
                    record = kept
                audience.done(record)
                records[job.name].append(record)
        return Results(records)


def _plan_turns(jobs: list[Job], repeats: int, out: Path) -> list[tuple[Job, Path]]:
    """Whose turn it is, one after another, and where the record goes."""
    rounds = [jobs if number % 2 == 0 else jobs[::-1] for number in range(repeats)]
    return [(job, out / f"{job.name}-{number}.json") for number, each in enumerate(rounds, start=1) for job in each]


def _find_place(job: Job, path: Path) -> tuple[Path, Record | None]:
    """Where the record is or goes, and the record of this job that is there. One of the same name that is another
    job's, such as that of the same study with other options, stays where it is."""
    places = (path if number == 1 else path.with_stem(f"{path.stem}-other-{number}") for number in itertools.count(1))
    for place in places:
        record = _find_kept(job, place)
        if record is not None or not place.exists():
            break
    return place, record


def _find_kept(job: Job, path: Path) -> Record | None:
    try:
        record = finished(path, job.spec, job.plan, job.takes, job.network)
    except UserError:
        return None  # a damaged one, which stays where it is
    if record is None:
        return None
    made = (record.launch.get("program", ""), record.launch.get("engine", job.engine))
    return record if made == (job.program, job.engine) else None


def _run(job: Job, fabrics: _Fabrics, audience: Audience) -> Record:
    entry = Entry.read(job.spec, job.name)
    record = run_once(entry, job.plan, _options(job, fabrics.get(job.network)), audience.event, job.function, job.args)
    assert record is not None, "an experiment starts its own workers"
    return dataclasses.replace(record, launch={**record.launch, "program": job.program}) if job.program else record


def _options(job: Job, fabric: Fabric) -> LaunchOptions:
    """On one machine a worker computes with one thread, so that runs with few workers have no more than others."""
    threads = 1 if job.network == "loopback" else 0
    modules = find_task(job.plan.task).modules
    return LaunchOptions(job.workers, job.engine, preload=modules, threads=threads, fabric=fabric)


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

    def __init__(self, clock: Clock) -> None:
        self.done = 0  # jobs that were begun, or kept
        self._clock = clock
        self._spent: list[tuple[float, float]] = []  # cost and seconds of jobs that were run

    @contextmanager
    def timed(self, cost: float) -> Iterator[None]:
        begun = self._clock.now()
        yield
        self._spent.append((cost, self._clock.now() - begun))

    def left(self, cost: float) -> str:
        if not self._spent:
            return ""
        rate = sum(seconds for _, seconds in self._spent) / sum(cost for cost, _ in self._spent)
        return f"about {format_seconds(rate * cost)} left"
