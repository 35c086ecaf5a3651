"""What each aggregator does to the model, on gradients and on parameters, with and without one bad worker.

    settings        aggregators x {gradients, parameters} x {all honest, one bad worker} x {lr as given, corrected}
    corrected       so that a step is about as long as the mean's, where it is not so already:
                    sum        lr / n     the sum is the mean times n
                    adasum     lr / √n    between the mean (contributions that agree) and the sum (at right angles)
                    sign-vote  lr / 100   every number of its result is 1 or -1, whatever the gradient

Every aggregator of the folder takes part. Workers are threads: no time is measured. The whole model is one bucket, so
that an aggregator which looks at distances sees whole contributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from tutti.aggregators.base import Aggregator
from tutti.errors import UserError
from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story
from tutti.lab.labels import join
from tutti.lab.report.chart import Chart
from tutti.lab.report.heat_map import make_heat_map
from tutti.lab.report.parts import Bullets, Cell, Paragraph, Section, Table
from tutti.lab.studies.base import COMPARED, Claim, Outcome, Study
from tutti.lab.units import format_percent
from tutti.lab.variation import make_slug
from tutti.spec import Count, Range, names, parse

PLACES = {
    "gradients": "gradient-average({}, bucket=1GiB, overlap=false)",
    "parameters": "model-average({}, bucket=1GiB)",
}
Behaviour = Literal["sign-flip", "huge", "nan", "noise", "zero"]
HONEST = "honest"
_BAD_WORKER = 1
_CORRECTIONS: dict[str, Callable[[int], float]] = {  # what the learning rate is divided by
    "sum": float,
    "adasum": math.sqrt,
    "sign-vote": lambda _: 100.0,
}
_MADE_FOR_IT = ("median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "centred-clipping")
_NEAR = 0.05  # of accuracy below the honest mean's is still about as good
_SAME_LOSS = 1e-3  # what rounding has grown to after the steps compared stays below this


@dataclass(frozen=True)
class Way:
    """An aggregator, and what the learning rate is divided by for it."""

    aggregator: str
    divisor: float = 1.0

    @property
    def label(self) -> str:
        return self.aggregator if self.divisor == 1 else f"{self.aggregator} at lr/{self.divisor:.3g}"

    @property
    def file(self) -> str:
        corrected = "" if self.divisor == 1 else "-corrected"
        return make_slug(self.aggregator) + corrected


MEAN = Way("mean")


@dataclass(frozen=True)
class Aggregation(Study):
    title: ClassVar[str] = "Ways to combine contributions"
    question: ClassVar[str] = (
        "What each aggregator does to the model, on gradients and on parameters, with and without one bad worker."
    )
    quick: ClassVar[dict[str, Any]] = {"seeds": 1, "steps": 40, "lr": 0.2, "workers": 5, "bad": ("sign-flip", "huge")}

    workers: Annotated[Count, "how many"] = 8
    steps: Annotated[Count, "of every run"] = 200
    lr: Annotated[float, "learning rate, where it is not corrected", Range(least=0)] = 0.1
    aggregators: Annotated[tuple[str, ...], "which ones, beside the mean, with commas between (default: all)"] = ()
    bad: Annotated[tuple[Behaviour, ...], "what the bad worker sends; also noise, zero"] = ("sign-flip", "huge", "nan")

    def __post_init__(self) -> None:
        if self.workers <= _BAD_WORKER:
            raise UserError(f"--workers must be at least {_BAD_WORKER + 1}: one is bad; not {self.workers}")
        for member in self._members():
            member.check(self.workers)

    def _members(self) -> list[Aggregator]:
        """The mean first, then what is linear too, then the others."""
        members = [parse(text, Aggregator) for text in ("mean", *(self.aggregators or names("aggregators")))]
        distinct = {str(member): member for member in members}
        return sorted(distinct.values(), key=lambda member: (member.name != "mean", not member.linear, str(member)))

    @property
    def ways(self) -> list[Way]:
        found = []
        for member in self._members():
            found.append(Way(str(member)))
            if member.name in _CORRECTIONS:
                found.append(Way(str(member), _CORRECTIONS[member.name](self.workers)))
        return found

    @property
    def sent(self) -> tuple[str, ...]:
        """By the one worker: what it should, and what a bad one does."""
        return tuple(dict.fromkeys((HONEST, *self.bad)))

    def settings(self) -> list[Job]:
        return [self._setting(place, way, sent) for place in PLACES for way in self.ways for sent in self.sent]

    def _setting(self, place: str, way: Way, sent: str) -> Job:
        exchange = f"all-reduce(star, {way.aggregator})"
        if sent != HONEST:
            exchange = f"corrupt({exchange}, worker={_BAD_WORKER}, by={sent})"
        spec, plan = PLACES[place].format(exchange), self.plan(steps=self.steps, lr=self.lr / way.divisor)
        return Job(_name(place, way, sent), spec, plan, self.workers, engine="threads")

    def tell(self, results: Results) -> Story:
        grid = _Grid(self, self.read(results))
        tables = [_make_table(grid, place) for place in PLACES]
        sections = [
            Section("At a glance", [_make_map(grid), Bullets(_find_facts(grid))]),
            *(Section(f"On {place}", [table]) for place, table in zip(PLACES, tables, strict=True)),
            _show_models(grid),
            Section("What is compared", [Paragraph(text) for text in _explain(self)]),
        ]
        return Story(_find(grid), _judge(grid), sections, tables, grid.figures())


def _name(place: str, way: Way, sent: str) -> str:
    return f"{place}-{way.file}-{sent}"


# --- the settings side by side ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    study: Aggregation
    outcomes: dict[str, Outcome]

    @property
    def compared(self) -> int:
        """First steps whose losses are compared."""
        return min(COMPARED, self.study.steps)

    def at(self, place: str, way: Way, sent: str = HONEST) -> Outcome:
        return self.outcomes[_name(place, way, sent)]

    @cached_property
    def ways(self) -> list[Way]:
        return self.study.ways

    @property
    def reached(self) -> float:
        """By the mean of gradients, all honest: what the others are held against."""
        return self.at("gradients", MEAN).accuracy.mean

    def keeps_up(self, place: str, way: Way, sent: str = HONEST) -> bool:
        """With the honest mean, with every seed."""
        return self.at(place, way, sent).worst >= self.reached - _NEAR

    def withstands(self, place: str, way: Way) -> bool:
        return all(self.keeps_up(place, way, sent) for sent in self.study.sent)

    def weakest(self, place: str, way: Way) -> str:
        """Who is lost to what, in words."""
        sent = min(self.study.bad, key=lambda sent: self.at(place, way, sent).worst)
        return f"{way.label} {_say(self.at(place, way, sent))} ({_call(sent)})"

    def figures(self) -> list[dict[str, Any]]:
        return [
            {
                "aggregator": way.aggregator,
                "lr_divided_by": way.divisor,
                "on": place,
                "sent": sent,
                "accuracies": self.at(place, way, sent).accuracy.values,
                "losses": [loss if math.isfinite(loss) else None for loss in self.at(place, way, sent).loss.values],
                "diverged": self.at(place, way, sent).diverged,
            }
            for place in PLACES
            for way in self.ways
            for sent in self.study.sent
        ]


def _say(outcome: Outcome) -> str:
    return "diverged" if outcome.diverged else format_percent(outcome.accuracy.mean)


def _say_gap(gap: float) -> str:
    return f"{gap:.1e}" if math.isfinite(gap) else "without end"


def _call(sent: str) -> str:
    return "NaN" if sent == "nan" else sent


def _does(sent: str) -> str:
    return {"sign-flip": "flips its signs", "huge": "sends huge numbers"}.get(sent, f"sends {_call(sent)}")


# --- what is found ---------------------------------------------------------------------------------------------------


def _find(grid: _Grid) -> str:
    steady = {place: [way.label for way in grid.ways if grid.withstands(place, way)] for place in PLACES}
    listed = [
        f"{len(labels)} of {len(grid.ways)} ways to combine {place}{f' ({join(labels)})' if labels else ''}"
        for place, labels in steady.items()
    ]
    return (
        f"The mean of {grid.study.workers} honest workers' gradients reaches {format_percent(grid.reached)}; with one "
        f"of them bad, {join(listed)} come within {100 * _NEAR:.0f} points of that whatever it sends."
    )


def _find_facts(grid: _Grid) -> list[str]:
    facts = [_say_honest(grid, place) for place in PLACES]
    facts += [_say_spoilt(grid, place, sent) for place in PLACES for sent in grid.study.sent[1:]]
    corrected = [way for way in grid.ways if way.divisor != 1]
    return facts + [_say_corrected(grid, way) for way in corrected]


def _say_honest(grid: _Grid, place: str) -> str:
    behind = [f"{way.label} ({_say(grid.at(place, way))})" for way in grid.ways if not grid.keeps_up(place, way)]
    if not behind:
        return f"Where all are honest, every way to combine {place} keeps up with the mean."
    return f"Where all are honest, these ways to combine {place} fall behind the mean: {join(behind)}."


def _say_spoilt(grid: _Grid, place: str, sent: str) -> str:
    """Only of those that keep up when all are honest."""
    able = [way for way in grid.ways if grid.keeps_up(place, way)]
    spoilt = [f"{way.label} ({_say(grid.at(place, way, sent))})" for way in able if not grid.keeps_up(place, way, sent)]
    begin = f"Where one worker {_does(sent)}"
    if not spoilt:
        return f"{begin}, all {len(able)} ways to combine {place} that keep up without it keep up with it."
    which = f"{len(spoilt)} of the {len(able)} ways to combine {place} that keep up without it"
    return f"{begin}, {which} fall behind: {join(spoilt)}."


def _say_corrected(grid: _Grid, way: Way) -> str:
    plain = Way(way.aggregator)
    texts = [f"{_say(grid.at(place, way))} on {place} ({_say(grid.at(place, plain))} at lr)" for place in PLACES]
    return f"Where all are honest, {way.label}: {', '.join(texts)}."


# --- claims ----------------------------------------------------------------------------------------------------------


def _judge(grid: _Grid) -> list[Claim]:
    claims = [_parameters_are_gradients(grid), _one_is_enough(grid)]
    total = next((way for way in grid.ways if way.aggregator == "sum" and way.divisor != 1), None)
    if total is not None:
        claims = [_sum_is_mean(grid, total), _sum_multiplies(grid, total), *claims]
    robust = [way for way in grid.ways if way.aggregator.partition("(")[0] in _MADE_FOR_IT]
    return claims + [_robust_withstand(grid, place, robust) for place in PLACES if robust]


def _sum_is_mean(grid: _Grid, total: Way) -> Claim:
    gap = grid.at("gradients", total).apart(grid.at("gradients", MEAN))
    given, corrected = (_say(grid.at("gradients", way)) for way in (Way("sum"), total))
    return Claim(
        "The sum of gradients is their mean with a learning rate so many times as high.",
        f"at lr/{total.divisor:g} the losses are the mean's, to rounding",
        f"largest difference in {grid.compared} steps {_say_gap(gap)}; {corrected}, and {given} at lr",
        "holds" if gap < _SAME_LOSS else "does not hold",
        "Dividing the learning rate by the number of workers divides the sum by it.",
    )


def _sum_multiplies(grid: _Grid, total: Way) -> Claim:
    ends = [grid.at("parameters", way) for way in (Way("sum"), total)]
    lost = all(max(end.accuracy.values) < grid.reached / 2 for end in ends)
    return Claim(
        "The sum of parameters multiplies the model at every step, and no learning rate mends that.",
        f"nothing is learnt, at lr or lr/{total.divisor:g}",
        f"{_say(ends[0])} at lr, {_say(ends[1])} at lr/{total.divisor:g}",
        "holds" if lost else "does not hold",
        f"{grid.study.workers} nearly equal models are added up, so after k steps the weights are "
        f"{grid.study.workers} to the power of k times as large; the learning rate scales only what is new.",
    )


def _parameters_are_gradients(grid: _Grid) -> Claim:
    gap = grid.at("parameters", MEAN).apart(grid.at("gradients", MEAN))
    return Claim(
        "The mean of parameters after every step is the mean of gradients, for SGD.",
        "the same losses, to rounding",
        f"largest difference in {grid.compared} steps {_say_gap(gap)}; "
        f"{_say(grid.at('parameters', MEAN))} and {format_percent(grid.reached)}",
        "holds" if gap < _SAME_LOSS else "does not hold",
        "The step of SGD, with momentum too, is linear in the gradient, and all start from the same weights.",
    )


def _one_is_enough(grid: _Grid) -> Claim:
    linear = [way for way in grid.ways if parse(way.aggregator, Aggregator).linear]
    standing = [way.label for way in linear if grid.withstands("gradients", way)]
    why = "Whatever the others say, one worker can bring a weighted sum wherever it wants."
    if standing:
        why = f"What was sent here did not bring down {join(standing)}; something worse would."
    return Claim(
        "One bad worker is enough to spoil any linear combination.",
        "every one of them falls to something that the worker sends",
        f"of {grid.study.workers} workers one is bad, on gradients: "
        + ", ".join(grid.weakest("gradients", way) for way in linear),
        "does not hold" if standing else "holds",
        why,
    )


def _robust_withstand(grid: _Grid, place: str, robust: list[Way]) -> Claim:
    fallen = [way for way in robust if not grid.withstands(place, way)]
    lowest = min(grid.at(place, way, sent).worst for way in robust for sent in grid.study.bad)
    ours = f"lowest accuracy of any with any seed {format_percent(lowest)}"
    if fallen:
        ours = f"{len(fallen)} of {len(robust)} do not: {', '.join(grid.weakest(place, way) for way in fallen)}"
    return Claim(
        f"Aggregators made for it withstand one bad worker, on {place}.",
        f"within {100 * _NEAR:.0f} points of {format_percent(grid.reached)}: {join([way.label for way in robust])}",
        ours,
        "does not hold" if fallen else "holds",
        _explain_fall(grid, place, fallen),
    )


def _explain_fall(grid: _Grid, place: str, fallen: list[Way]) -> str:
    if not fallen:
        return "Each leaves out, or limits, what is far from the majority."
    short = [way.label for way in fallen if not grid.keeps_up(place, way)]
    spoilt = [way.label for way in fallen if grid.keeps_up(place, way)]
    texts = [f"with honest workers too: {join(short)}"] if short else []
    return f"Short of it {'; '.join([*texts, *([f'only with the bad one: {join(spoilt)}'] if spoilt else [])])}."


# --- what is shown ---------------------------------------------------------------------------------------------------


def _make_table(grid: _Grid, place: str) -> Table:
    ends = {way: [grid.at(place, way, sent) for sent in grid.study.sent] for way in grid.ways}
    rows = [[Cell(way.label), *(end.write(end.accuracy, 1, 100) for end in each)] for way, each in ends.items()]
    caption = f"Test accuracy in % of what is combined on {place}, by what one worker sends; {grid.study.spread}."
    return Table(("aggregator", *map(_call, grid.study.sent)), rows, caption)


def _make_map(grid: _Grid) -> Chart:
    panels = {
        f"on {place}": [[_shade(grid.at(place, way, sent)) for sent in grid.study.sent] for way in grid.ways]
        for place in PLACES
    }
    caption = (
        f"Test accuracy in %, the mean over the seeds; × is a run that diverged. {grid.study.workers} workers, one of "
        "which sends what stands under the column."
    )
    rows, columns = [way.label for way in grid.ways], [*map(_call, grid.study.sent)]
    return make_heat_map("Accuracy", panels, rows, columns, "what one worker sends", caption, "diverged")


def _shade(outcome: Outcome) -> Cell:
    count = len(outcome.records)
    if outcome.diverged:
        return Cell("×" if outcome.diverged == count else f"× {outcome.diverged}/{count}", math.nan)
    return Cell(f"{100 * outcome.accuracy.mean:.1f}", outcome.accuracy.mean)


def _show_models(grid: _Grid) -> Section:
    """All honest: how far the training itself is from the mean's."""
    rows = []
    for place in PLACES:
        for way in grid.ways:
            end = grid.at(place, way)
            gap = end.apart(grid.at("gradients", MEAN))
            losses = [end.write(spread, 3) for spread in (end.train_loss, end.loss)]
            rows.append([Cell(way.label), Cell(place), *losses, Cell(_say_gap(gap), gap)])
    header = ("aggregator", "on", "training loss", "test loss", "losses apart\nfrom the mean's")
    caption = (
        f"All honest. The training loss is that of the last steps, all workers together; the last column is "
        f"the largest difference of a step's loss to the mean of gradients in the first {grid.compared} steps; "
        f"{grid.study.spread}."
    )
    return Section("What becomes of the model", [Table(header, rows, caption)])


def _explain(study: Aggregation) -> list[str]:
    corrected = [way.label for way in study.ways if way.divisor != 1]
    texts = [
        "On gradients, every worker steps with what the aggregator made of all gradients. On parameters, every worker "
        "steps with its own gradient, and then all go on with what the aggregator made of their weights.",
        f"The bad worker is number {_BAD_WORKER}. What it sends is spoilt on the way out: sign-flip is the negative, "
        "huge a million times as large, NaN no numbers at all. It learns from what all agree on, like the others.",
        f"Whoever is more than {100 * _NEAR:.0f} points of accuracy below the mean of honest gradients, with any seed, "
        "falls behind.",
    ]
    if corrected:
        texts.append(
            f"The learning rate is {study.lr:g} for all, and also divided where a step would be much longer "
            f"than the mean's ({join(corrected)}): by the number of workers for a sum, by its root for Adasum, which "
            "lies between mean and sum, and by 100 for a vote of signs, whose steps are as long as the learning rate."
        )
    return texts
