"""A comparison as a table, and what it shows as one sentence: both are read off the records and nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from tutti.lab.equal_accuracy import differ, find_equal
from tutti.lab.figures import Figures, find_baseline, name_baseline, read_figures, say_own_clocks
from tutti.lab.labels import describe_choices, describe_conditions, describe_rates, join, make_labels
from tutti.lab.record import Record
from tutti.lab.units import NOTHING, common_unit, format_bytes, format_number, format_percent, format_seconds

_WIDE = 96  # columns that the whole table needs
_LOOK: dict[str, Any] = {
    "box": SIMPLE_HEAD,
    "show_edge": False,
    "pad_edge": False,
    "padding": 0,
    "header_style": "bold",
    "caption_justify": "left",
}
_MARKS = {"": "", "metered": "", "formula": "~", "interface": "^"}  # in front of a size, by its source
_NOTES = {
    "metered": "payload metered on our wire",
    "formula": "~ by formula, as a backend's own operations do not pass our wire",
    "interface": "^ counted by the network interface, with headers and acknowledgements",
}
TIMES = "seconds of training of the slowest worker over its steps, the first ones included"
_LEARNT_LITTLE = 0.5  # a best accuracy below this is no success to report

# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    header: str
    cell: Callable[[Figures], str]
    in_short: bool = True  # stays where there is little room


class _Fitting(Table):
    """A table with a shorter one to show in its place where there is little room."""

    short: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= _WIDE:
            return super().__rich_console__(console, options)
        return self.short.__rich_console__(console, options)


def make_table(records: list[Record]) -> Table:
    """One row per record, in the order given; under 96 columns the figures that can be missed are left out."""
    figures = read_figures(records, label_length=1000)
    columns = _columns(figures) if figures else []
    table = _Fitting(**_LOOK)
    table.short = Table(**_LOOK)
    _fill(table, columns, records, figures)
    _fill(table.short, [column for column in columns if column.in_short], records, figures)
    return table


def _fill(table: Table, columns: list[_Column], records: list[Record], figures: list[Figures]) -> None:
    table.add_column("run", overflow="fold", min_width=8)
    for column in columns:
        table.add_column(column.header, justify="right", no_wrap=True)
    for record, each in zip(records, figures, strict=True):
        table.add_row(Text(record.name), *(column.cell(each) for column in columns))
    table.caption = _caption(records, figures)


def _columns(figures: list[Figures]) -> list[_Column]:
    time, unit = _time_cell(figures)
    base = find_baseline(figures)
    speed = _Column(f"speed\n× {name_baseline(base)}", lambda f: _fixed(f.speed(base), 2))
    return [
        _Column("workers\n", lambda f: str(f.workers)),
        _Column("accuracy\n%", lambda f: _fixed(100 * f.accuracy, 1)),
        _Column("loss\n", lambda f: _fixed(f.loss, 4) if f.loss < 10 else format_number(f.loss), in_short=False),
        _Column(f"step\n{unit}", lambda f: time(f.step)),
        *([speed] if len(figures) > 1 else []),
        _Column("samples/s\nmean ± std", _rate_cell(figures), in_short=False),
        _sent_column(figures),
        _Column(f"compute\n{unit}", lambda f: time(f.compute), in_short=False),
        _Column(f"hidden\n{unit}", lambda f: time(f.hidden), in_short=False),
        _Column(f"exposed\n{unit}", lambda f: time(f.exposed)),
    ]


def _sent_column(figures: list[Figures]) -> _Column:
    """With the busiest worker where any run has one that sends more than the others."""

    def size(each: Figures, nbytes: float) -> str:
        return _MARKS.get(each.source, "?") + format_bytes(nbytes)

    if not any(each.is_uneven for each in figures):
        return _Column("sent\nper step", lambda f: size(f, f.nbytes))
    return _Column(
        "sent per step\nmean / busiest",
        lambda f: f"{size(f, f.nbytes)} / {format_bytes(f.busiest)}" if math.isfinite(f.nbytes) else NOTHING,
    )


def _time_cell(figures: list[Figures]) -> tuple[Callable[[float], str], str]:
    """How the times of this table are written, all with the same unit and number of decimals."""
    scale, unit = common_unit([each.step for each in figures])
    largest = max((each.step / scale for each in figures if math.isfinite(each.step)), default=0.0)
    decimals = 2 if largest < 10 else 1 if largest < 1000 else 0
    return lambda seconds: _fixed(seconds / scale, decimals), unit


def _rate_cell(figures: list[Figures]) -> Callable[[Figures], str]:
    """With the signs below each other."""

    def deviation(each: Figures) -> str:
        return _fixed(each.deviation, 0 if each.rate >= 100 else 1)

    width = max(len(deviation(each)) for each in figures)
    return lambda f: f"{_fixed(f.rate, 0 if f.rate >= 100 else 1)} ± {deviation(f):>{width}}"


def _fixed(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if math.isfinite(value) else NOTHING


def _caption(records: list[Record], figures: list[Figures]) -> Text:
    if not records:
        return Text("no records")
    notes = [note for source, note in _NOTES.items() if any(each.source == source for each in figures)]
    labels = [each.label for each in figures]
    chosen = describe_rates(records, labels) + describe_choices(records, labels)
    sent = f"bytes sent are one worker's, the mean of all: {'; '.join(notes)}" if notes else ""
    said = [describe_conditions(records), f"step: {TIMES}", say_own_clocks(figures), sent, *chosen]
    return Text("\n".join(filter(None, said)))


# --- mean model and own models ---------------------------------------------------------------------------------------


def describe_own_models(records: list[Record]) -> list[str]:
    """What the mean model is worth beside the workers' own, a line for every run in which they differ."""
    labels = make_labels(records, 60)
    return [
        f"{label}: {_beside(record)}" for label, record in zip(labels, records, strict=True) if record.own_accuracies
    ]


def _beside(record: Record) -> str:
    least, median, most = (choose(record.own_accuracies) for choose in (min, statistics.median, max))
    low, middle, high, mean = (format_percent(each) for each in (least, median, most, record.accuracy))
    whose = f"the workers' own models {low} to {high} (median {middle})"
    if low == high:
        whose = f"every worker's own model {high}"
    elif record.accuracy > most and mean != high:
        whose = f"more than any worker's own model ({low} to {high}, median {middle})"
    elif record.accuracy < least and mean != low:
        whose = f"less than any worker's own model ({low} to {high}, median {middle})"
    return f"the mean model has {mean} accuracy, {whose}"


# --- the sentence ----------------------------------------------------------------------------------------------------


def finding(records: list[Record]) -> str:
    """What the records show, in one sentence that is true of them; what lies within the noise is called equal."""
    records = [record for record in records if record.measurements and record.steps]
    figures = read_figures(records, label_length=60)
    if not figures:
        return "No run was measured."
    if len({each.work for each in figures}) > 1:
        return f"The runs differ in task, model or batch, so their steps do not compare; {_accuracies(figures)}."
    race = _Race(figures)
    clauses = [race.sentence(), _at_equal_accuracy(records, race.runners), _accuracies(figures)]
    return f"{'; '.join(filter(None, clauses))}."


class _Race:
    """Who is fastest among the distributed runs (among all, where none is), and by how much."""

    def __init__(self, figures: list[Figures]) -> None:
        self.runners = self._runners = sorted([f for f in figures if f.workers > 1] or figures, key=lambda f: f.step)
        self._differ = differ(self._runners)  # in accuracy, which then stands with every speed
        self._first = self._runners[0]
        self._winners = [each for each in self._runners if each.equals(self._first)]
        self._base = next((f for f in figures if f.workers == 1 and f not in self._runners), None)
        self._kind = "distributed runs" if self._first.workers > 1 else "runs"

    def sentence(self) -> str:
        if len(self._runners) == 1:
            waits = f", {_what_for(self._first)}" if self._first.workers > 1 else ""
            return f"{self._first.label} takes {self._span(self._runners)} per step{waits}{self._against_base()}"
        if len(self._winners) == len(self._runners):
            all_of = "Both" if len(self._runners) == 2 else f"All {len(self._runners)}"
            span = self._span(self._runners)
            return f"{all_of} {self._kind} take equally long per step within noise, {span}{self._against_base()}"
        return f"Of {len(self._runners)} {self._kind}, {self._fastest()}, {self._slowest()}"

    def _fastest(self) -> str:
        names, span = join([each.label for each in self._winners]), self._span(self._winners)
        span += self._accuracy(self._winners)
        if len(self._winners) == 1:
            return f"{names} has the fastest step ({span}{self._against_base()})"
        return f"{names} have the fastest steps ({span}, equal within noise{self._against_base()})"

    def _slowest(self) -> str:
        last = next(each for each in reversed(self._runners) if each not in self._winners)
        waits = f", {_what_for(last)}" if last.workers > 1 else ""
        waits += self._accuracy([last])
        return f"{_times(last.step / self._first.step)} as fast as {last.label} ({format_seconds(last.step)}{waits})"

    def _accuracy(self, figures: list[Figures]) -> str:
        """What they reach, where not all reach the same."""
        reached = sorted(each.accuracy for each in figures if math.isfinite(each.accuracy))
        if not self._differ or not reached:
            return ""
        return f", {' to '.join(dict.fromkeys(format_percent(each) for each in (reached[0], reached[-1])))} accuracy"

    def _against_base(self) -> str:
        if self._base is None:
            return ""
        if self._first.equals(self._base):
            return f", as fast as {self._base.label} within noise"
        return f", {_times(self._first.speed(self._base))} the speed of {self._base.label}"

    @staticmethod
    def _span(figures: list[Figures]) -> str:
        return " to ".join(dict.fromkeys(format_seconds(each.step) for each in (figures[0], figures[-1])))


def _at_equal_accuracy(records: list[Record], runners: list[Figures]) -> str:
    """Who is first at the accuracy that all runs reach, where they end with different ones."""
    labels = [each.label for each in read_figures(records, label_length=60)]
    chosen = {each.label: each for each in runners}
    pairs = [(r, chosen[label]) for r, label in zip(records, labels, strict=True) if label in chosen]
    found = find_equal([r for r, _ in pairs], [each for _, each in pairs]) if differ(runners) else None
    if found is None:
        return ""
    (first, winner), (last, loser) = found.times[0], found.times[-1]
    reach = "both reach" if len(found.times) == 2 else f"all {len(found.times)} reach"
    if any(each.diverged for each in runners):
        reach = f"{reach} that did not diverge"
    text = f"{format_percent(found.accuracy)} accuracy, which {reach},"
    early, late = format_seconds(first), format_seconds(last)
    if early == late:
        return f"{text} takes {early} of training"
    return f"{text} is first reached by {winner} after {early} of training, last by {loser} after {late}"


def _times(factor: float) -> str:
    return f"{factor:.2f} times" if factor < 1.995 else f"{factor:.2g} times" if factor < 10 else f"{factor:.0f} times"


def _what_for(each: Figures) -> str:
    """What most of a step goes to."""
    if each.exposed >= each.step / 2:
        return f"{format_percent(each.exposed / each.step, 0)} of it waiting for communication"
    return f"{format_percent(each.compute / each.step, 0)} of it computing"


def _accuracies(figures: list[Figures]) -> str:
    """The clause on accuracy: from where to where the runs reach, and which of them diverged."""
    diverged = [each.label for each in figures if each.diverged]
    reached = sorted((f for f in figures if math.isfinite(f.accuracy) and not f.diverged), key=lambda f: f.accuracy)
    if not reached:
        everywhere = " in every run" if len(diverged) == len(figures) > 1 else ""
        return f"the loss diverged{everywhere}" if diverged else "no accuracy is known"
    low, high = reached[0], reached[-1]
    texts = list(dict.fromkeys(format_percent(each.accuracy) for each in (low, high)))
    clause = f"accuracy {' to '.join(texts)}"
    if differ(reached):
        clause = f"accuracy from {texts[0]} ({low.label}) to {texts[1]} ({high.label})"
    elif high.accuracy < _LEARNT_LITTLE and len(reached) > 1:
        clause = f"accuracy {texts[-1]} at most"
    return clause + (f", while the loss of {join(diverged)} diverged" if diverged else "")
