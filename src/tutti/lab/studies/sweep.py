"""Which learning rate, and which value of any other parameter, is best for each algorithm on each kind of partition.

    cases       algorithms x partitions; an algorithm may be put on another graph: `d-psgd on torus`
    values      --lrs, and any other parameter of plan or spec: --vary momentum=0,0.9 --vary mu=0.5:0.9:+0.1
    search      grid: all of them, and on beyond the best learning rate where it lies at the edge
                tpe:  so many trials of every case, chosen by optuna between the lowest and the highest value

The best values are kept in a file (lab/tuned.py), from which `--tuned` takes them. Workers are threads: no time is
measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

from tutti.errors import UserError
from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story
from tutti.lab.labels import join
from tutti.lab.report.parts import Cell, Paragraph, Section, Table
from tutti.lab.report.series import Across, Line, Point, make_series
from tutti.lab.search import LOST, Axis, Method, Progress, Score, Search, Trial
from tutti.lab.studies.base import REPEATED, Claim, Outcome, Study
from tutti.lab.tuned_study import RATES, LearningRate, keep_best, make_entry, score_of
from tutti.lab.units import format_percent
from tutti.lab.variation import make_slug, read_algorithm
from tutti.partitions.base import Partition
from tutti.spec import Count, parse

_APART = 2.0  # a factor between learning rates that is more than chance between neighbours of a grid


@dataclass(frozen=True)
class Sweep(Study):
    title: ClassVar[str] = "The best learning rates"
    question: ClassVar[str] = "Which values of learning rate and other parameters are best for each algorithm."
    quick: ClassVar[dict[str, Any]] = {"seeds": 1, "workers": 4, "epochs": 4, "lrs": (0.02, 0.08, 0.32)}

    algorithms: Annotated[tuple[str, ...], "presets or specs with commas between; also 'SPEC on TOPOLOGY'"] = (
        "d-psgd",
        "relay-sgd",
    )
    workers: Annotated[Count, "how many"] = 8
    partition: Annotated[tuple[str, ...], "how samples are dealt out: see tutti catalogue partitions"] = ("iid",)
    epochs: Annotated[Count, "of every run"] = 12
    batch: Annotated[Count, "samples per worker and step"] = 16
    lrs: Annotated[tuple[LearningRate, ...], "learning rates"] = RATES
    vary: Annotated[tuple[str, ...], "another parameter and its values; may be given several times", REPEATED] = ()
    search: Annotated[Method, "grid, or tpe: optuna chooses the trials"] = "grid"
    trials: Annotated[Count, "of every case, where they are chosen"] = 12
    samples: Annotated[Count | None, "of the training set, its first ones (default: all)"] = None

    def __post_init__(self) -> None:
        for case in self.cases:
            case.first.job  # noqa: B018  reads every name and value, before anything runs
        names = [axis.name for axis in self.axes]
        if len(set(names)) < len(names):
            raise UserError(f"--vary names a parameter twice: {', '.join(names)}")

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        given = tuple(Axis.read(text) for text in self.vary)
        return given if any(axis.name == "lr" for axis in given) else (Axis.rates(self.lrs), *given)

    @cached_property
    def cases(self) -> list[Case]:
        return [
            Case(
                self._make_job(algorithm, partition), algorithm, partition, Search(self.axes, self.search, self.trials)
            )
            for partition in dict.fromkeys(self.partition)
            for algorithm in dict.fromkeys(self.algorithms)
        ]

    def _make_job(self, algorithm: str, partition: str) -> Job:
        words = [algorithm] if len(set(self.partition)) == 1 else [partition, algorithm]
        plan = self.plan(
            epochs=self.epochs,
            global_batch=self.batch * self.workers,
            samples=self.samples,
            partition=str(parse(partition, Partition)),
        )
        name = "-".join(map(make_slug, words))
        return Job(name, read_algorithm(algorithm), plan, self.workers, engine="threads")

    # --- what to run -------------------------------------------------------------------------------------------------

    def settings(self) -> list[Job]:
        """What is tried first."""
        return self._wanted(lambda _: None)

    def more(self, results: Results) -> list[Job]:
        return self.with_seeds(self._wanted(self.score_in(results)))

    def _wanted(self, score: Score) -> list[Job]:
        return [trial.job for case in self.cases for trial in case.follow(score).wanted]

    def ahead(self, results: Results, jobs: list[Job]) -> list[Job]:
        counts = [(case, case.search.ahead(case.follow(self.score_in(results)))) for case in self.cases]
        return self.with_seeds([case.job for case, count in counts for _ in range(count)])

    def score_in(self, results: Results) -> Score:
        def score(trial: Trial) -> float | None:
            if not self.is_done(trial.name, results):
                return None
            return score_of(self.read_setting(trial.name, results))

        return score

    # --- what is found -----------------------------------------------------------------------------------------------

    def settle(self, results: Results) -> list[str]:
        searched = [axis.name for axis in self.axes]
        tried = [trial for each in self._explore(results) for trial in each.tried]
        return keep_best([make_entry(trial, self.read_setting(trial.name, results), searched) for trial in tried])

    def _explore(self, results: Results) -> list[Progress]:
        return [case.follow(self.score_in(results)) for case in self.cases]

    def tell(self, results: Results) -> Story:
        ends = [
            _End(self, case, progress, results)
            for case, progress in zip(self.cases, self._explore(results), strict=True)
        ]
        best = _make_best_table(self, ends)
        sections = [
            Section("What is best", [*([_make_chart(self, ends)] if "lr" in ends[0].names else []), best]),
            Section("What was tried", [_make_table(self, ends), Paragraph(_explain(self))]),
        ]
        return Story(
            _find(ends), _judge(self, ends), sections, [best], [figure for end in ends for figure in end.figures()]
        )


@dataclass(frozen=True)
class Case:
    """An algorithm on a partition, and the search for its values."""

    job: Job
    algorithm: str
    partition: str
    search: Search

    @property
    def first(self) -> Trial:
        return Trial(self.job, tuple((axis.name, axis.values[0]) for axis in self.search.axes))

    def follow(self, score: Score) -> Progress:
        return self.search.follow(self.job, score)


@dataclass(frozen=True)
class _End:
    """A case at the end of its search."""

    study: Sweep
    case: Case
    progress: Progress
    results: Results

    @property
    def names(self) -> list[str]:
        return [axis.name for axis in self.study.axes]

    @property
    def label(self) -> str:
        return (
            self.case.algorithm
            if len(set(self.study.partition)) == 1
            else f"{self.case.algorithm}, {self.case.partition}"
        )

    @cached_property
    def best(self) -> Trial:
        return self.progress.best(self.study.score_in(self.results))

    @property
    def learns(self) -> bool:
        return score_of(self.outcome(self.best)) != LOST

    @property
    def at_edge(self) -> bool:
        return self.progress.at_edge(self.best)

    def outcome(self, trial: Trial) -> Outcome:
        return self.study.read_setting(trial.name, self.results)

    def over_rates(self) -> dict[float, Outcome]:
        """The best outcome at every learning rate, whatever the other parameters."""
        found: dict[float, Outcome] = {}
        for trial in self.progress.tried:
            lr, outcome = float(trial["lr"]), self.outcome(trial)
            if lr not in found or score_of(outcome) > score_of(found[lr]):
                found[lr] = outcome
        return found

    def figures(self) -> list[dict[str, Any]]:
        return [
            {
                "algorithm": self.case.algorithm,
                "partition": self.case.partition,
                **dict(trial.values),
                "accuracies": self.outcome(trial).accuracy.values,
                "diverged": self.outcome(trial).diverged,
                "best": trial == self.best,
            }
            for trial in self.progress.tried
        ]


# --- in words --------------------------------------------------------------------------------------------------------


def _find(ends: list[_End]) -> str:
    said = [f"{end.label} {end.best.label} ({_say(end)})" for end in ends]
    return f"Best of what was tried: {'; '.join(said)}."


def _say(end: _End) -> str:
    return format_percent(end.outcome(end.best).accuracy.mean) if end.learns else "all diverged"


def _judge(study: Sweep, ends: list[_End]) -> list[Claim]:
    claims = [_is_inside(study, ends)]
    rates = {end.label: float(end.best["lr"]) for end in ends if "lr" in end.names and end.learns}
    return [*claims, _one_for_all(rates)] if len(rates) > 1 else claims


def _is_inside(study: Sweep, ends: list[_End]) -> Claim:
    outside = [end.label for end in ends if end.at_edge or not end.learns]
    tried = sum(len(end.progress.tried) for end in ends)
    return Claim(
        "What was tried holds the best values.",
        "no best learning rate is the lowest or the highest that could be tried",
        f"{len(ends) - len(outside)} of {len(ends)} within, after {tried} trials"
        + (f"; not {join(outside)}" if outside else ""),
        "does not hold" if outside else "holds",
        "A grid goes on beyond its edge until the next value is worse; a search stays between its limits."
        if study.search == "grid"
        else "The search stays between its limits: what lies beyond needs others.",
    )


def _one_for_all(rates: dict[str, float]) -> Claim:
    low, high = min(rates, key=lambda label: rates[label]), max(rates, key=lambda label: rates[label])
    ratio = rates[high] / rates[low]
    ours = f"from {rates[low]:g} ({low}) to {rates[high]:g} ({high}), a factor of {ratio:.3g}"
    return Claim(
        "Every algorithm needs a learning rate of its own.",
        f"the best ones are more than a factor of {_APART:g} apart",
        ours if ratio > 1 else f"{rates[low]:g} for all",
        "holds" if ratio > _APART else "does not hold",
        "What workers take over from each other, and how late, decides how long a step may be; compared at one rate "
        "for all, some would be held back.",
    )


def _explain(study: Sweep) -> str:
    samples = "the whole training set" if study.samples is None else f"the first {study.samples:,} training samples"
    how = (
        "all combinations were tried, and where the best learning rate was at an edge, the next one beyond it as well"
        if study.search == "grid"
        else f"{study.trials} trials of every case, chosen by optuna's TPE"
    )
    return (
        f"{study.workers} workers with {study.batch} samples each per step, {study.epochs} epochs on {samples}; {how}. "
        "What counts is the test accuracy at the end; the best values are kept for --tuned."
    )


# --- tables and figure -----------------------------------------------------------------------------------------------


def _make_best_table(study: Sweep, ends: list[_End]) -> Table:
    rows = []
    for end in ends:
        outcome = end.outcome(end.best)
        values = [Cell(end.best[name]) for name in end.names]
        edge = Cell("at the edge" if end.at_edge else "within")
        accuracy = outcome.write(outcome.accuracy, 1, 100)
        rows.append(
            [
                Cell(end.case.algorithm),
                Cell(end.case.partition),
                *values,
                accuracy,
                Cell(str(len(end.progress.tried))),
                edge,
            ]
        )
    header = ("algorithm", "partition", *ends[0].names, "accuracy\n%", "trials", "of what was tried")
    return Table(header, rows, f"The best values, and the test accuracy with them; {study.spread}.")


def _make_table(study: Sweep, ends: list[_End]) -> Table:
    rows = []
    for end in ends:
        for trial in sorted(end.progress.tried, key=_order):
            outcome = end.outcome(trial)
            figures = [outcome.write(outcome.accuracy, 1, 100), outcome.write(outcome.loss, 3)]
            values = [Cell(trial[name]) for name in end.names]
            rows.append([Cell(end.case.algorithm), Cell(end.case.partition), *values, *figures])
    header = ("algorithm", "partition", *ends[0].names, "accuracy\n%", "test loss")
    return Table(header, rows, f"Test accuracy and loss at the end of every trial; {study.spread}.")


def _order(trial: Trial) -> list[tuple[float, str]]:
    """By number where there are numbers."""
    return [(float(value), "") if _is_number(value) else (0.0, value) for _, value in trial.values]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _make_chart(study: Sweep, ends: list[_End]) -> Any:
    panels = {}
    algorithms = list(dict.fromkeys(study.algorithms))
    for partition in dict.fromkeys(study.partition):
        here = [end for end in ends if end.case.partition == partition]
        panels[partition] = [
            Line(end.case.algorithm, _make_points(end), algorithms.index(end.case.algorithm)) for end in here
        ]
    best_of = ", the best over the other parameters," if len(ends[0].names) > 1 else ""
    caption = (
        f"Test accuracy{best_of} after {study.epochs} epochs over the learning rate; {study.spread}"
        f"{', bands one deviation up and down' if study.seeds > 1 else ''}. What diverged has no point."
    )
    return make_series(
        "Accuracy over the learning rate", panels, Across("learning rate", "factors"), "test accuracy, %", caption
    )


def _make_points(end: _End) -> list[Point]:
    return [
        Point(lr, float("nan") if each.diverged else 100 * each.accuracy.mean, 100 * each.accuracy.deviation)
        for lr, each in end.over_rates().items()
    ]
