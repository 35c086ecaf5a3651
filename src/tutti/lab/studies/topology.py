"""How much it matters who talks to whom: algorithms on graphs, for several numbers of workers.

    settings        algorithms x graphs x workers, as far as they go together
    beside them     the spectral gap of the graph's mixing matrix: 1 - gap is left of a disagreement after one step
    consensus       the root of the mean squared distance of the workers from their mean, at the end

An algorithm that has no graph (all-reduce) runs once for every number of workers and stands beside the others. Each
setting has its own learning rate. Workers are threads: no time is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

from tutti.algorithms.base import Algorithm
from tutti.errors import UserError
from tutti.graph import find_spectral_gap
from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story
from tutti.lab.labels import join
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Bullets, Cell, Paragraph, Section, Table
from tutti.lab.report.series import Across, Line, Point, make_series
from tutti.lab.studies.base import Claim, Outcome
from tutti.lab.tuned_study import NEAR, LearningRate, TunedStudy, find_family
from tutti.lab.units import NOTHING, format_number
from tutti.lab.variation import has_parameter, make_slug, read_algorithm
from tutti.spec import Count, parse
from tutti.topologies.base import Topology

_NONE = ""  # the graph of those who have none


@dataclass(frozen=True)
class TopologyStudy(TunedStudy):
    title: ClassVar[str] = "Who talks to whom"
    question: ClassVar[str] = (
        "How much the graph of neighbours matters to each algorithm, for several numbers of workers."
    )
    quick: ClassVar[dict[str, Any]] = {
        "seeds": 1,
        "epochs": 6,
        "lrs": (0.04, 0.16, 0.64),
        "workers": (8,),
        "algorithms": ("allreduce-model", "d-psgd", "relay-sgd"),
        "graphs": ("chain", "ring", "double-binary-tree", "complete"),
    }

    task: Annotated[str, "what is learnt: see tutti catalogue tasks"] = "digits"
    epochs: Annotated[Count, "of every run"] = 12
    batch: Annotated[Count, "samples per worker and step"] = 8
    lrs: Annotated[tuple[LearningRate, ...], "learning rates to choose from; one alone is taken as it is"] = (
        0.04,
        0.08,
        0.16,
    )
    samples: Annotated[Count | None, "of the training set for choosing (none: all)"] = None
    workers: Annotated[tuple[Count, ...], "how many, with commas between"] = (8, 16)
    partition: Annotated[str, "how samples are dealt out: see tutti catalogue partitions"] = "dirichlet(0.1)"
    algorithms: Annotated[tuple[str, ...], "presets or specs with commas between"] = (
        "allreduce-model",
        "d-psgd",
        "d2",
        "gradient-tracking",
        "relay-sgd",
    )
    graphs: Annotated[tuple[str, ...], "see tutti catalogue topologies"] = (
        "chain",
        "ring",
        "binary-tree",
        "double-binary-tree",
        "torus",
        "exponential",
        "complete",
    )

    def __post_init__(self) -> None:
        if not self.pairs:
            raise UserError("none of these algorithms goes with any of these graphs and numbers of workers")

    @cached_property
    def pairs(self) -> list[tuple[str, str, int]]:
        """What goes together: algorithm, graph, workers."""
        return [
            (name, graph, workers)
            for workers in dict.fromkeys(self.workers)
            for name in dict.fromkeys(self.algorithms)
            for graph in (dict.fromkeys(self.graphs) if has_parameter(read_algorithm(name), "topology") else [_NONE])
            if goes_together(name, graph, workers)
        ]

    def settings(self) -> list[Job]:
        return [
            self.make_job(_name(name, graph, workers), _put_on(name, graph), workers, partition=self.partition)
            for name, graph, workers in self.pairs
        ]

    def tell(self, results: Results) -> Story:
        grid = _Grid(self, self.read(results))
        table = _make_table(grid)
        charts = [_make_chart(grid), *_make_distance_chart(grid)]
        sections = [
            Section("At a glance", [*charts, Bullets(_find_facts(grid))]),
            Section("Every setting", [table]),
            Section("What is compared", [Paragraph(text) for text in _explain(grid)]),
        ]
        return Story(_find(grid), _judge(grid), sections, [table], grid.figures())


def _name(algorithm: str, graph: str, workers: int) -> str:
    return "-".join(filter(None, [make_slug(algorithm), make_slug(graph), str(workers)]))


def _put_on(algorithm: str, graph: str) -> str:
    return f"{algorithm} on {graph}" if graph else algorithm


def goes_together(algorithm: str, graph: str, workers: int) -> bool:
    try:
        parse(read_algorithm(_put_on(algorithm, graph)), Algorithm).check(workers)
    except UserError:
        return False
    return True


def find_gap(graph: str, workers: int) -> float:
    """Per step, of its slowest part; nan where averaging with neighbours is impossible, or would not keep the mean."""
    topology = parse(graph, Topology)
    try:
        return min(find_spectral_gap(topology, workers, part=part)[1] for part in range(topology.parts))
    except UserError:
        return math.nan


# --- the settings side by side ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    study: TopologyStudy
    outcomes: dict[str, Outcome]

    @property
    def algorithms(self) -> list[str]:
        return list(dict.fromkeys(self.study.algorithms))

    @property
    def sizes(self) -> list[int]:
        return sorted({workers for _, _, workers in self.study.pairs})

    @cached_property
    def graphs(self) -> list[str]:
        """From the smallest gap of the smallest number of workers to the largest."""
        known = [
            graph for graph in dict.fromkeys(self.study.graphs) if any(graph == each for _, each, _ in self.study.pairs)
        ]
        gaps = {graph: find_gap(graph, self.sizes[0]) for graph in known}
        return sorted(known, key=lambda graph: math.inf if math.isnan(gaps[graph]) else gaps[graph])

    def at(self, algorithm: str, graph: str, workers: int) -> Outcome | None:
        """Those without a graph are the same on all of them."""
        found = self.outcomes.get(_name(algorithm, graph, workers))
        return found or self.outcomes.get(_name(algorithm, _NONE, workers))

    def on_graphs(self, algorithm: str, workers: int) -> dict[str, Outcome]:
        """Where it has run."""
        found = {graph: self.outcomes.get(_name(algorithm, graph, workers)) for graph in self.graphs}
        return {graph: outcome for graph, outcome in found.items() if outcome is not None}

    def figures(self) -> list[dict[str, Any]]:
        return [
            {
                "algorithm": name,
                "graph": graph or None,
                "workers": workers,
                "spectral_gap": _plain(find_gap(graph, workers)) if graph else None,
                **self.outcomes[_name(name, graph, workers)].figures(),
            }
            for name, graph, workers in self.study.pairs
        ]


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- in words --------------------------------------------------------------------------------------------------------


def _find(grid: _Grid) -> str:
    most = grid.sizes[-1]
    said = [_say_range(name, grid.on_graphs(name, most)) for name in grid.algorithms if grid.on_graphs(name, most)]
    return f"With {most} workers, from the worst graph to the best: {'; '.join(said) or 'no graph was tried'}."


def _say_range(name: str, ends: dict[str, Outcome]) -> str:
    worst, best = (choose(ends, key=lambda graph: ends[graph].score) for choose in (min, max))
    if len(ends) == 1:
        return f"{name} {ends[best].say()} ({best})"
    return f"{name} {ends[worst].say()} ({worst}) to {ends[best].say()} ({best})"


def _find_facts(grid: _Grid) -> list[str]:
    facts = []
    for workers in grid.sizes:
        for name in grid.algorithms:
            ends = grid.on_graphs(name, workers)
            if len(ends) > 1:
                best = max(end.score for end in ends.values())
                near = [graph for graph, end in ends.items() if best - end.score <= NEAR]
                facts.append(f"{name} with {workers} workers is within 1 point of its best on {join(near)}.")
    left_out = [
        f"{name} on {graph} with {workers}"
        for workers in grid.sizes
        for name in grid.algorithms
        for graph in dict.fromkeys(grid.study.graphs)
        if has_parameter(read_algorithm(name), "topology") and (name, graph, workers) not in grid.study.pairs
    ]
    return [*facts, f"What does not go together was left out: {join(left_out)}."] if left_out else facts


def _judge(grid: _Grid) -> list[Claim]:
    most = grid.sizes[-1]
    gossip = [name for name in grid.algorithms if find_family(read_algorithm(name)) == "gossip"]
    relay = [name for name in grid.algorithms if find_family(read_algorithm(name)) == "relay"]
    claims = [_gap_matters(grid, name, most) for name in gossip if len(grid.on_graphs(name, most)) > 1]
    return claims + [_graph_does_not_matter(grid, name, most) for name in relay if len(grid.on_graphs(name, most)) > 1]


def _gap_matters(grid: _Grid, name: str, workers: int) -> Claim:
    ends = grid.on_graphs(name, workers)
    gaps = {graph: find_gap(graph, workers) for graph in ends}
    known = [graph for graph in ends if math.isfinite(gaps[graph])]
    low, high = (choose(known, key=lambda graph: gaps[graph]) for choose in (min, max))
    difference = ends[high].score - ends[low].score
    said = [f"{graph} (gap {format_number(gaps[graph])}) {ends[graph].say()}" for graph in (low, high)]
    return Claim(
        f"{name} does better on a graph with a larger spectral gap.",
        f"more than 1 point between the smallest and the largest, with {workers} workers",
        ", ".join(said),
        "holds" if difference > NEAR else "does not hold",
        "What is left of a disagreement after a step is 1 - gap of it; the more is left, the more a worker leans to "
        "its own data."
        if difference > NEAR
        else "On this task the workers' disagreement costs the mean model less than a point.",
    )


def _graph_does_not_matter(grid: _Grid, name: str, workers: int) -> Claim:
    scores = {graph: end.score for graph, end in grid.on_graphs(name, workers).items()}
    low, high = (choose(scores, key=lambda graph: scores[graph]) for choose in (min, max))
    spread = scores[high] - scores[low]
    return Claim(
        f"{name} learns about as well on every tree.",
        f"at most 1 point between the worst and the best, with {workers} workers",
        f"{low} {100 * scores[low]:.1f} %, {high} {100 * scores[high]:.1f} %",
        "holds" if spread <= NEAR else "does not hold",
        "Every contribution counts once and alike on any tree; only how late it comes differs."
        if spread <= NEAR
        else "Trees differ only in how late contributions come: it is that, or chance.",
    )


def _explain(grid: _Grid) -> list[str]:
    study, several = grid.study, len(grid.sizes) > 1
    return [
        f"{study.task}, partition {study.partition}, {join([str(size) for size in grid.sizes])} workers with "
        f"{study.batch} samples each per step{', so that more workers take fewer and larger steps' * several}.",
        f"{study.explain_rates()} Each algorithm has its own for every graph and number of workers.",
        "The spectral gap is that of Metropolis weights, per step. Relay takes the shortest ways from the graph's root "
        "as its tree.",
    ]


# --- figures and table -----------------------------------------------------------------------------------------------


def _make_chart(grid: _Grid) -> Chart:
    panels = {
        f"{workers} workers": [
            Line(name, _points(grid, name, workers, _accuracy), at) for at, name in enumerate(grid.algorithms)
        ]
        for workers in grid.sizes
    }
    caption = (
        "Test accuracy of the mean model at the end on every graph, from the smallest spectral gap to the largest "
        f"(with {grid.sizes[0]} workers); {grid.study.spread}. What diverged or does not go together has no point."
    )
    return make_series("Accuracy on every graph", panels, _across(grid), "test accuracy, %", caption)


def _make_distance_chart(grid: _Grid) -> list[Chart]:
    """None where nobody measured it, or all are always the same."""
    panels = {
        f"{workers} workers": [
            Line(name, _points(grid, name, workers, _distance), at) for at, name in enumerate(grid.algorithms)
        ]
        for workers in grid.sizes
    }
    if not any(line.drawn for lines in panels.values() for line in lines):
        return []
    caption = (
        "How far the workers are from their mean at the end: the root of the mean squared distance; "
        f"{grid.study.spread}. Who is not shown ends with the same weights everywhere."
    )
    name = "consensus distance (logarithmic)"
    return [make_series("Distance between the workers", panels, _across(grid), name, caption, up_factors=True)]


def _across(grid: _Grid) -> Across:
    return Across("graph", "named", {float(at): graph for at, graph in enumerate(grid.graphs)})


def _points(grid: _Grid, name: str, workers: int, read: Any) -> list[Point]:
    found = [(at, grid.at(name, graph, workers)) for at, graph in enumerate(grid.graphs)]
    return [Point(float(at), *read(outcome)) for at, outcome in found if outcome is not None and not outcome.diverged]


def _accuracy(outcome: Outcome) -> tuple[float, float]:
    return 100 * outcome.accuracy.mean, 100 * outcome.accuracy.deviation


def _distance(outcome: Outcome) -> tuple[float, float]:
    """A band around it would reach below zero."""
    distance = outcome.distance
    return (distance.mean if distance is not None and distance.mean > 0 else math.nan), 0.0


def _make_table(grid: _Grid) -> Table:
    rows = []
    for name, graph, workers in grid.study.pairs:
        outcome = grid.outcomes[_name(name, graph, workers)]
        gap = find_gap(graph, workers) if graph else math.nan
        figures = [outcome.write(outcome.accuracy, 1, 100), outcome.write_distance()]
        gap_cell = Cell(format_number(gap) if math.isfinite(gap) else NOTHING)
        rows.append(
            [
                Cell(name),
                Cell(graph or NOTHING),
                Cell(str(workers)),
                gap_cell,
                *figures,
                Cell(f"{outcome.plan['lr']:g}"),
            ]
        )
    header = ("algorithm", "graph", "workers", "spectral gap", "accuracy\n%", "consensus distance", "lr")
    caption = f"Where every setting ended; {grid.study.spread}."
    return Table(header, rows, caption)
