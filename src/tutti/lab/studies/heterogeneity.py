"""How well workers learn together when their data differ: algorithms against the Dirichlet partition's alpha.

    settings    algorithms x alphas, every worker with the classes that dirichlet(alpha) dealt out to it
    alpha       1: some classes more, some less; 0.1: mostly a few classes; 0.01: hardly more than one or two
    judged by   the test accuracy of the mean model, against all-reduce model averaging, where all agree in every step

Each algorithm has its own learning rate for each alpha. Workers are threads: no time is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tutti.errors import UserError
from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story
from tutti.lab.labels import join
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Bullets, Cell, Paragraph, Section, Table
from tutti.lab.report.series import Across, Line, Point, make_series
from tutti.lab.studies.base import Claim, Outcome
from tutti.lab.tuned_study import NEAR, TunedStudy, find_family, say_points
from tutti.lab.units import NOTHING
from tutti.lab.variation import make_slug, read_algorithm
from tutti.spec import Count, Range

Alpha = Annotated[float, Range(least=1e-4, most=1e6)]  # as dirichlet takes it


@dataclass(frozen=True)
class Heterogeneity(TunedStudy):
    title: ClassVar[str] = "Workers with different data"
    question: ClassVar[str] = "How well workers without a server learn together, the more their data differ."
    quick: ClassVar[dict[str, Any]] = {
        "seeds": 1,
        "task": "digits",
        "epochs": 6,
        "batch": 8,
        "samples": None,
        "lrs": (0.04, 0.16, 0.64),
        "alphas": (1.0, 0.01),
        "algorithms": ("allreduce-model", "d-psgd", "relay-sgd-chain", "relay-sgd"),
    }

    workers: Annotated[Count, "how many"] = 8
    alphas: Annotated[tuple[Alpha, ...], "of the Dirichlet partition: the smaller, the more the data differ"] = (
        1.0,
        0.1,
        0.01,
    )
    algorithms: Annotated[tuple[str, ...], "presets or specs with commas between; also 'SPEC on TOPOLOGY'"] = (
        "allreduce-model",
        "d-psgd",
        "d2",
        "gradient-tracking",
        "qg-dsgd",
        "relay-sgd-chain",
        "relay-sgd",
    )

    def __post_init__(self) -> None:
        if not self.algorithms or not self.alphas:
            raise UserError("a study of data that differ needs at least one algorithm and one alpha")
        if self.workers < 2:
            raise UserError("a study of data that differ between workers needs at least --workers 2")

    def settings(self) -> list[Job]:
        return [
            self.make_job(_name(algorithm, alpha), algorithm, self.workers, partition=f"dirichlet({alpha:g})")
            for alpha in dict.fromkeys(self.alphas)
            for algorithm in dict.fromkeys(self.algorithms)
        ]

    def tell(self, results: Results) -> Story:
        grid = _Grid(self, self.read(results))
        table = _make_table(grid)
        sections = [
            Section("At a glance", [_make_chart(grid), Bullets(_find_facts(grid))]),
            Section("Accuracy at the end", [table, _make_rate_table(grid)]),
            Section("What is compared", [Paragraph(text) for text in _explain(self)]),
        ]
        return Story(_find(grid), _judge(grid), sections, [table], grid.figures())


def _name(algorithm: str, alpha: float) -> str:
    return f"alpha-{alpha:g}-{make_slug(algorithm)}"


# --- the settings side by side ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    study: Heterogeneity
    outcomes: dict[str, Outcome]

    @property
    def algorithms(self) -> list[str]:
        return list(dict.fromkeys(self.study.algorithms))

    @property
    def alphas(self) -> list[float]:
        """The data differ more and more."""
        return sorted(set(self.study.alphas), reverse=True)

    def at(self, algorithm: str, alpha: float) -> Outcome:
        return self.outcomes[_name(algorithm, alpha)]

    def of_family(self, family: str) -> list[str]:
        return [name for name in self.algorithms if find_family(read_algorithm(name)) == family]

    @property
    def reference(self) -> str | None:
        """What the others are held against: all agree in every step."""
        return next(iter(self.of_family("all-reduce")), None)

    def gap(self, algorithm: str, alpha: float) -> float:
        """How far it is behind the reference; all the way for what diverged."""
        reached = self.at(algorithm, alpha)
        return self.at(self.reference or algorithm, alpha).score - reached.score

    def figures(self) -> list[dict[str, Any]]:
        return [
            {"algorithm": name, "alpha": alpha, **self.at(name, alpha).figures()}
            for alpha in self.alphas
            for name in self.algorithms
        ]


# --- in words --------------------------------------------------------------------------------------------------------


def _find(grid: _Grid) -> str:
    worst = grid.alphas[-1]
    said = [f"{name} {grid.at(name, worst).say()}" for name in grid.algorithms]
    return f"Where the data of {grid.study.workers} workers differ most (alpha {worst:g}): {', '.join(said)}."


def _find_facts(grid: _Grid) -> list[str]:
    facts = []
    for alpha in grid.alphas:
        scores = {name: grid.at(name, alpha).score for name in grid.algorithms}
        best = max(scores, key=lambda name: scores[name])
        behind = [f"{name} ({grid.at(name, alpha).say()})" for name in scores if scores[best] - scores[name] > NEAR]
        text = f"At alpha {alpha:g} the best is {best} ({grid.at(best, alpha).say()})"
        facts.append(
            f"{text}; more than 1 point behind: {join(behind)}." if behind else f"{text}; all are within 1 point."
        )
    return facts


def _judge(grid: _Grid) -> list[Claim]:
    if grid.reference is None:
        return []
    claims = [_keeps_up(grid, name) for name in grid.of_family("relay")]
    return claims + [_falls_behind(grid, name) for name in grid.of_family("gossip")]


def _keeps_up(grid: _Grid, name: str) -> Claim:
    gaps = {alpha: grid.gap(name, alpha) for alpha in grid.alphas}
    missed = [f"{alpha:g}" for alpha, gap in gaps.items() if gap > NEAR]
    return Claim(
        f"{name} comes within 1 point of {grid.reference} at every alpha.",
        "at most 1 point below, in the mean over the seeds",
        ", ".join(f"alpha {alpha:g}: {say_points(-gap)}" for alpha, gap in gaps.items()),
        "does not hold" if missed else "holds",
        f"Missed at alpha {join(missed)}: contributions arrive late, which matters more where data differ; or chance."
        if missed
        else "Every contribution reaches everybody once, with the same weight, whatever it is: only later.",
    )


def _falls_behind(grid: _Grid, name: str) -> Claim:
    worst = grid.alphas[-1]
    gap = grid.gap(name, worst)
    return Claim(
        f"{name} falls behind {grid.reference} where the data differ most.",
        f"more than 1 point below at alpha {worst:g}",
        f"alpha {worst:g}: {say_points(-gap)}",
        "holds" if gap > NEAR else "does not hold",
        "A worker hears of those far away only through others, so its model leans to the data nearby."
        if gap > NEAR
        else "On this task and with this tuning, neighbours alone are enough.",
    )


def _explain(study: Heterogeneity) -> list[str]:
    return [
        f"{study.workers} workers have equally many samples each, every sample is one worker's, and which classes they "
        "are of was drawn from a Dirichlet distribution with parameter alpha, anew for every seed. After every epoch "
        "the mean of all models is evaluated on the whole test set.",
        study.explain_rates(),
        "The reference averages all models behind every step (all-reduce). Gossip averages with neighbours, relay "
        "passes sums along trees so that every contribution reaches everybody once.",
    ]


# --- figure and tables -----------------------------------------------------------------------------------------------


def _make_chart(grid: _Grid) -> Chart:
    panels = {
        f"alpha = {alpha:g}": [Line(name, _curve(grid.at(name, alpha)), at) for at, name in enumerate(grid.algorithms)]
        for alpha in grid.alphas
    }
    bands = "; bands reach one deviation up and down" if grid.study.seeds > 1 else ""
    caption = (
        f"Test accuracy of the mean model after every epoch, {grid.study.workers} workers, {grid.study.task}; "
        f"{grid.study.spread}{bands}."
    )
    return make_series("Accuracy over epochs", panels, Across("epochs", "whole"), "test accuracy, %", caption)


def _curve(outcome: Outcome) -> list[Point]:
    points = [Point(epoch, 100 * each.mean, 100 * each.deviation) for epoch, each in outcome.curve.items()]
    return [point for point in points if math.isfinite(point.mean)]


def _make_table(grid: _Grid) -> Table:
    rows = [[Cell(name), *(_write(grid.at(name, alpha)) for alpha in grid.alphas)] for name in grid.algorithms]
    caption = f"Test accuracy in % of the mean model at the end; {grid.study.spread}."
    return Table(("algorithm", *(f"alpha {alpha:g}" for alpha in grid.alphas)), rows, caption)


def _write(outcome: Outcome) -> Cell:
    return outcome.write(outcome.accuracy, 1, 100)


def _make_rate_table(grid: _Grid) -> Table:
    """And how far apart the workers were."""
    rows = []
    for name in grid.algorithms:
        outcomes = [grid.at(name, alpha) for alpha in grid.alphas]
        rates = [Cell(f"{outcome.plan['lr']:g}") for outcome in outcomes]
        rows.append([Cell(name), *rates, *(outcome.write_distance() for outcome in outcomes)])
    header = (
        "algorithm",
        *(f"{what} {alpha:g}" for what in ("lr\nalpha", "distance\nalpha") for alpha in grid.alphas),
    )
    caption = (
        f"The learning rate of every setting, and how far the workers are from their mean at the end (the root of the "
        f"mean squared distance; {NOTHING} where it was not measured); {grid.study.spread}."
    )
    return Table(header, rows, caption)
