"""What lost messages do to those who go on without them: algorithms against the share of messages that get lost.

    settings    algorithms x loss rates; gradients and weights get lost, each message by itself (comm/lossy.py)
    tolerant    gossip and relay go on without what is lost, each in its documented way
    others      send again what was lost: they learn what they learn without loss, only later, so they run only without

The learning rate of an algorithm is the one that is best without loss, or, with `--retune`, at each loss rate. Workers
are threads: no time is measured.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tutti.algorithms.base import Algorithm
from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story
from tutti.lab.labels import join
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Bullets, Cell, Paragraph, Section, Table
from tutti.lab.report.series import Across, Line, Point, make_series
from tutti.lab.studies.base import Claim, Outcome
from tutti.lab.tuned_study import NEAR, TunedStudy, find_family, say_points
from tutti.lab.variation import make_slug, read_algorithm
from tutti.spec import Count, parse
from tutti.train import LossRate

_MUCH = 0.1  # the share of lost messages at which relay is judged


@dataclass(frozen=True)
class Drops(TunedStudy):
    title: ClassVar[str] = "Messages that get lost"
    question: ClassVar[str] = "How much worse a model becomes when workers go on without the messages that get lost."
    quick: ClassVar[dict[str, Any]] = {
        "seeds": 1,
        "task": "digits",
        "epochs": 6,
        "batch": 8,
        "samples": None,
        "lrs": (0.04, 0.16, 0.64),
        "rates": (0.0, 0.1),
        "algorithms": ("allreduce-model", "d-psgd", "relay-sgd-chain", "relay-sgd"),
    }

    workers: Annotated[Count, "how many"] = 8
    partition: Annotated[str, "how samples are dealt out: see tutti catalogue partitions"] = "dirichlet(0.1)"
    rates: Annotated[tuple[LossRate, ...], "shares of messages that get lost, as in 1%%,10%%; 0 is always there"] = (
        0.0,
        0.01,
        0.05,
        0.1,
        0.2,
    )
    retune: Annotated[bool, "choose the learning rate anew at every loss rate, not only without loss"] = False
    algorithms: Annotated[tuple[str, ...], "presets or specs with commas between; also 'SPEC on TOPOLOGY'"] = (
        "allreduce-model",
        "d-psgd",
        "d2",
        "gradient-tracking",
        "qg-dsgd",
        "relay-sgd-chain",
        "relay-sgd",
    )

    @property
    def losses(self) -> list[float]:
        return sorted({0.0, *self.rates})

    def settings(self) -> list[Job]:
        return [
            self.make_job(_name(algorithm, loss), algorithm, self.workers, partition=self.partition, loss=loss)
            for loss in self.losses
            for algorithm in dict.fromkeys(self.algorithms)
            if loss == 0 or goes_on(algorithm)
        ]

    def tuned_for(self, job: Job) -> Job:
        """The same without loss, unless each loss rate has its own."""
        if self.retune:
            return job
        name = job.name.rpartition("-loss-")[0]
        return dataclasses.replace(job, name=name, plan=dataclasses.replace(job.plan, loss=0.0))

    def tell(self, results: Results) -> Story:
        grid = _Grid(self, self.read(results))
        table = _make_table(grid)
        sections = [
            Section("At a glance", [_make_chart(grid), Bullets(_find_facts(grid))]),
            Section("Accuracy at the end", [table]),
            Section("What is compared", [Paragraph(text) for text in _explain(grid)]),
        ]
        return Story(_find(grid), _judge(grid), sections, [table], grid.figures())


def _name(algorithm: str, loss: float) -> str:
    return f"{make_slug(algorithm)}-loss-{loss:g}"


def goes_on(algorithm: str) -> bool:
    """Whether any part of it goes on without what is lost; else everything is sent again."""
    return any(getattr(part, "tolerates_loss", False) for part in parse(read_algorithm(algorithm), Algorithm).walk())


# --- the settings side by side ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    study: Drops
    outcomes: dict[str, Outcome]

    @property
    def algorithms(self) -> list[str]:
        return list(dict.fromkeys(self.study.algorithms))

    @property
    def losses(self) -> list[float]:
        return self.study.losses

    @property
    def tolerant(self) -> list[str]:
        return [name for name in self.algorithms if self.is_run(name, self.losses[-1])]

    def is_run(self, algorithm: str, loss: float) -> bool:
        return _name(algorithm, loss) in self.outcomes

    def at(self, algorithm: str, loss: float) -> Outcome:
        """Without loss for those who send everything again: it is the same."""
        return self.outcomes.get(_name(algorithm, loss), self.outcomes[_name(algorithm, 0.0)])

    def fall(self, algorithm: str, loss: float) -> float:
        """How much less accurate than without loss."""
        return self.at(algorithm, 0.0).score - self.at(algorithm, loss).score

    def figures(self) -> list[dict[str, Any]]:
        return [
            {"algorithm": name, "loss": loss, **self.outcomes[_name(name, loss)].figures()}
            for name in self.algorithms
            for loss in self.losses
            if self.is_run(name, loss)
        ]


# --- in words --------------------------------------------------------------------------------------------------------


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _find(grid: _Grid) -> str:
    worst = grid.losses[-1]
    said = [f"{name} {say_points(-grid.fall(name, worst))}" for name in grid.tolerant] or [
        "nobody goes on without them"
    ]
    return f"With {_percent(worst)} of all messages lost, accuracy changes by: {', '.join(said)}."


def _find_facts(grid: _Grid) -> list[str]:
    facts = []
    for name in grid.tolerant:
        fine = [loss for loss in grid.losses if all(grid.fall(name, at) <= NEAR for at in grid.losses if at <= loss)]
        reached = grid.at(name, 0.0).say()
        if fine[-1] == grid.losses[-1]:
            facts.append(f"{name} stays within 1 point of its {reached} up to {_percent(fine[-1])}, the most tried.")
        else:
            next_ = grid.losses[grid.losses.index(fine[-1]) + 1]
            lost = grid.at(name, next_).say()
            up_to = f"{name} stays within 1 point of its {reached} up to {_percent(fine[-1])}"
            facts.append(f"{up_to}; at {_percent(next_)}: {lost}.")
    silent = [name for name in grid.algorithms if name not in grid.tolerant]
    return (
        [*facts, f"What is lost is sent again by {join(silent)}, so its accuracy stays as it is."] if silent else facts
    )


def _judge(grid: _Grid) -> list[Claim]:
    return [_stands(grid, name) for name in grid.tolerant if find_family(read_algorithm(name)) == "relay"]


def _stands(grid: _Grid, name: str) -> Claim:
    judged = max((loss for loss in grid.losses if loss <= _MUCH), default=0.0)
    if judged == 0:
        judged = grid.losses[-1]
    fall = grid.fall(name, judged)
    stands = fall <= NEAR
    ends = [f"{grid.at(name, loss).say()} at {_percent(loss)}" for loss in (0.0, judged)]
    return Claim(
        f"{name} at {_percent(judged)} loss comes within 1 point of none.",
        "at most 1 point below, in the mean over the seeds",
        f"{', '.join(ends)}: {say_points(-fall)}",
        "holds" if stands else "does not hold",
        _explain_relay(name, stands),
    )


def _explain_relay(name: str, stands: bool) -> str:
    exchange = parse(read_algorithm(name), Algorithm).members()["exchange"]
    if getattr(exchange, "lost", "") == "last":
        kept = "The message before a lost one stands in for it: everybody still counts once, some a step older"
        return f"{kept}." if stands else f"{kept}, and here that is too old."
    if stands:
        return "A lost message takes its count with it, so that the mean is one of fewer contributions, and unbiased."
    return "What is lost near the root takes many contributions with it; what is left leans to those nearby."


def _explain(grid: _Grid) -> list[str]:
    study = grid.study
    own, common = "Each loss rate has learning rates of its own.", "The learning rates were chosen without loss."
    texts = [
        f"{study.workers} workers, {study.task}, partition {study.partition}. Every message with gradients or weights "
        "is lost with the given probability, drawn by itself and the same way in every repetition with the same seed; "
        "what is lost at one rate is also lost at every higher one.",
        f"{study.explain_rates()} {own if study.retune else common}",
    ]
    silent = [name for name in grid.algorithms if name not in grid.tolerant]
    if silent:
        texts.append(f"Not run with loss, as what is lost is sent again: {join(silent)}.")
    return texts


# --- figure and table ------------------------------------------------------------------------------------------------


def _make_chart(grid: _Grid) -> Chart:
    lines = [
        Line(name, [_point(grid, name, loss) for loss in grid.losses], at) for at, name in enumerate(grid.algorithms)
    ]
    bands = "; bands reach one deviation up and down" if grid.study.seeds > 1 else ""
    caption = (
        f"Test accuracy of the mean model at the end against the share of messages that got lost; {grid.study.spread}"
        f"{bands}. What diverged has no point, and what is lost and sent again makes no difference: one point at 0 %."
    )
    across = Across("messages lost, %")
    return make_series("Accuracy against loss", {"accuracy": lines}, across, "test accuracy, %", caption)


def _point(grid: _Grid, name: str, loss: float) -> Point:
    outcome = grid.at(name, loss)
    mean = 100 * outcome.accuracy.mean if grid.is_run(name, loss) and not outcome.diverged else math.nan
    return Point(100 * loss, mean, 100 * outcome.accuracy.deviation)


def _make_table(grid: _Grid) -> Table:
    rows = []
    for name in grid.algorithms:
        ends = {loss: grid.at(name, loss) for loss in grid.losses}
        lr = Cell(" ".join(dict.fromkeys(f"{end.plan['lr']:g}" for end in ends.values())))
        cells = [
            end.write(end.accuracy, 1, 100) if grid.is_run(name, loss) else Cell("sent again")
            for loss, end in ends.items()
        ]
        rows.append([Cell(name), lr, *cells])
    header = ("algorithm", "lr", *(f"lost\n{_percent(loss)}" for loss in grid.losses))
    return Table(header, rows, f"Test accuracy in % of the mean model at the end; {grid.study.spread}.")
