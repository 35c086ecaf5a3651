"""Studies: one question, many settings, several seeds of each; what comes out is told as mean ± spread.

A study is a file of this folder that holds a dataclass. Its fields are its options on the command line (`workers` is
`--workers`), of any kind that a spec can read, or several of them with commas between, and annotated with what its help
says. A study says which settings to run and what their records show, and, where that depends on what was found, what to
run next (`more`). Seeds, running, resuming, time left, report and page are not its affair.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import typing
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from tutti.lab import studies
from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Folder, Inquiry, Statement, largest
from tutti.lab.record import Record
from tutti.lab.report.parts import Cell
from tutti.lab.units import NOTHING, format_percent
from tutti.lab.variation import split_list
from tutti.spec import Count, parse_quantity, unwrap
from tutti.tasks.base import task_text
from tutti.train import Plan, find_usual_model

Verdict = Literal["holds", "does not hold"]
REPEATED = object()  # marks a field of several texts whose option may be given several times
COMPARED = 20  # first steps whose losses tell whether two settings compute the same
_LAST = 10  # steps whose losses are taken together as the training loss


@dataclass(frozen=True)
class Claim(Statement):
    """Something that is known or said of the matter, what should follow from it, and what came out."""

    expected: str
    ours: str
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Study(Inquiry):
    question: ClassVar[str]  # one sentence
    quick: ClassVar[dict[str, Any]] = {"seeds": 1}  # the options' defaults where there is little time

    task: Annotated[str, "what is learnt: see tutti catalogue tasks"] = "digits"
    seeds: Annotated[Count, "runs of every setting, each with other weights and another order of the data"] = 3

    @abstractmethod
    def settings(self) -> list[Job]:
        """What to run, each with a name of its own; the seed is not its affair."""

    def jobs(self) -> list[Job]:
        """Every setting with the first seed before any with the second."""
        return self.with_seeds(self.settings())

    def with_seeds(self, settings: list[Job]) -> list[Job]:
        return [_with_seed(job, seed) for seed in range(self.seeds) for job in settings]

    def read(self, results: Results) -> dict[str, Outcome]:
        """What came of every setting, by its name."""
        return {job.name: self.read_setting(job.name, results) for job in self.settings()}

    def read_setting(self, name: str, results: Results) -> Outcome:
        return Outcome([results[_name(name, seed)][0] for seed in range(self.seeds)])

    def is_done(self, name: str, results: Results) -> bool:
        """Whether this setting has run with every seed."""
        return all(_name(name, seed) in results for seed in range(self.seeds))

    def plan(self, **changes: Any) -> Plan:
        """The usual training of this task; how long, says the study: `steps` or `epochs`."""
        usual = Plan(task_text(self.task), find_usual_model(self.task), epochs=None)
        return dataclasses.replace(usual, **changes)

    def introduce(self, command: str) -> str:
        return f"{self.question} Told from {self.runs} of every setting, made by `{command}`; {self.spread}."

    @property
    def runs(self) -> str:
        return "one run" if self.seeds == 1 else f"{self.seeds} runs"

    @property
    def spread(self) -> str:
        """What the figures are, for a caption."""
        if self.seeds == 1:
            return "one seed, so there is no telling how much is chance"
        return f"figures are mean ± sample standard deviation over {self.seeds} seeds"


def _with_seed(job: Job, seed: int) -> Job:
    return dataclasses.replace(job, name=_name(job.name, seed), plan=dataclasses.replace(job.plan, seed=seed))


def _name(setting: str, seed: int) -> str:
    return f"{setting}-seed-{seed}"


# --- what came out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Figures of one kind over the seeds."""

    values: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Of a sample; nothing where there is but one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def write(self, decimals: int, scale: float = 1) -> str:
        mean, deviation = (f"{scale * value:.{decimals}f}" for value in (self.mean, self.deviation))
        return f"{mean} ± {deviation}" if len(self.values) > 1 else mean


@dataclass(frozen=True)
class Outcome:
    """Where the runs of one setting ended."""

    records: list[Record]  # one per seed

    @property
    def diverged(self) -> int:
        """How many of them."""
        return sum(record.diverged for record in self.records)

    @property
    def accuracy(self) -> Spread:
        return Spread([record.accuracy for record in self.records])

    @property
    def loss(self) -> Spread:
        """On the test set."""
        return Spread([record.loss for record in self.records])

    @property
    def distance(self) -> Spread | None:
        """Of the workers from their mean at the end; None where it was not measured."""
        found = [record.evaluations[-1].get("distance") for record in self.records]
        known = [each for each in found if each is not None]
        return Spread(known) if len(known) == len(found) else None

    @property
    def curve(self) -> dict[float, Spread]:
        """The accuracy after every epoch that all of the runs have evaluated."""
        curves = [{entry["epoch"]: entry["accuracy"] for entry in record.evaluations} for record in self.records]
        epochs = [epoch for epoch in curves[0] if all(epoch in curve for curve in curves)]
        return {epoch: Spread([curve[epoch] for curve in curves]) for epoch in epochs}

    @property
    def train_loss(self) -> Spread:
        """Of the last steps, all workers together."""
        ends = [[loss for m in record.measurements for loss in m["losses"][-_LAST:]] for record in self.records]
        return Spread([statistics.fmean(losses) for losses in ends])

    @property
    def trained(self) -> int:
        """Samples that the workers of a run have gone through, all together."""
        return sum(count for each in self.records[0].measurements for count in each["samples"])

    def apart(self, other: Outcome) -> float:
        """The largest difference to another's losses on worker 0 in the first steps, seed by seed; nan if there is one.

        What rounding makes of equal computations stays far below what any other difference makes."""
        pairs = zip(self.records, other.records, strict=True)
        losses = (zip(_first_losses(one), _first_losses(another), strict=True) for one, another in pairs)
        return largest(abs(a - b) for seed in losses for a, b in seed)

    @property
    def worst(self) -> float:
        """The lowest accuracy; nothing is learnt by a run that diverged."""
        return 0.0 if self.diverged else min(self.accuracy.values)

    @property
    def score(self) -> float:
        """The mean accuracy by which settings are compared; nothing is learnt where any run diverged."""
        return 0.0 if self.diverged else self.accuracy.mean

    @property
    def plan(self) -> dict[str, Any]:
        """What all of them share but the seed."""
        return self.records[0].plan

    def say(self) -> str:
        return "diverged" if self.diverged else format_percent(self.accuracy.mean)

    def write_distance(self) -> Cell:
        """With two digits, as distances may lie powers of ten apart."""
        spread = self.distance
        if spread is None or self.diverged:
            return Cell(NOTHING)
        both = (spread.mean, spread.deviation)[: len(spread.values)]
        return Cell(" ± ".join(f"{value:.2g}" for value in both), spread.mean)

    def figures(self) -> dict[str, Any]:
        """For a program."""
        return {
            "lr": self.plan["lr"],
            "accuracies": self.accuracy.values,
            "losses": [loss if math.isfinite(loss) else None for loss in self.loss.values],
            "diverged": self.diverged,
            "distances": None if self.distance is None or self.diverged else self.distance.values,
        }

    def write(self, spread: Spread, decimals: int, scale: float = 1) -> Cell:
        """One of its figures, or that there is none."""
        if self.diverged:
            where = "" if self.diverged == len(self.records) else f" in {self.diverged} of {len(self.records)}"
            return Cell(f"diverged{where}", math.nan)
        return Cell(spread.write(decimals, scale), scale * spread.mean)


def _first_losses(record: Record) -> list[float]:
    return [float(loss) for loss in record.measurements[0]["losses"][:COMPARED]]


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """A field of a study as the command line sees it."""

    name: str
    kind: Any
    usual: Any
    quick: Any

    @property
    def text(self) -> str:
        return next(mark for mark in unwrap(self.kind)[1] if isinstance(mark, str))

    @property
    def is_flag(self) -> bool:
        """Stands alone for true."""
        return unwrap(self.kind)[0] is bool

    @property
    def is_repeated(self) -> bool:
        """Given once for every value, as each may have commas of its own."""
        return REPEATED in unwrap(self.kind)[1]

    @staticmethod
    def write(value: Any) -> str:
        """As it is typed."""
        if isinstance(value, tuple):
            return ",".join(map(Option.write, value))
        return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)

    def read(self, word: str) -> Any:
        """The value that is typed so; a SpecError says what `it` takes."""
        inner, _ = unwrap(self.kind)
        if self.is_repeated:
            return word
        if typing.get_origin(inner) is tuple:
            return tuple(parse_quantity(part, typing.get_args(inner)[0], "it") for part in split_list(word))
        return parse_quantity(word, self.kind, "it")


def options_of(study: type[Study]) -> list[Option]:
    kinds = typing.get_type_hints(study, include_extras=True)
    return [
        Option(field.name, kinds[field.name], field.default, study.quick.get(field.name, field.default))
        for field in dataclasses.fields(study)
    ]


# --- the folder ------------------------------------------------------------------------------------------------------


FOLDER = Folder(studies, Study, "study")


def names() -> list[str]:
    return FOLDER.names()


def find(name: str) -> type[Study]:
    return FOLDER.find(name)
