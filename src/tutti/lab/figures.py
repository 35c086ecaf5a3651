"""The figures of records side by side, and how two of them compare; nan stands for a figure that there is not."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from tutti.lab.labels import join, make_labels
from tutti.lab.record import Record

_UNEVEN = 1.02  # times the mean: what a reader is shown


@dataclass(frozen=True, eq=False)
class Figures:
    """What tables and pictures show of one record; times in seconds, of a step: wall-clock over steps."""

    label: str  # distinct among the records it stands with
    workers: int
    work: tuple[object, ...]  # only steps that do the same work compare
    accuracy: float = math.nan
    loss: float = math.nan
    step: float = math.nan
    quartiles: tuple[float, float] = (math.nan, math.nan)  # of the seconds of steps, the first ones left out
    median: float = math.nan  # of the same
    compute: float = math.nan
    hidden: float = math.nan
    exposed: float = math.nan
    rate: float = math.nan  # samples per second: mean and standard deviation over the steps
    deviation: float = math.nan
    samples: float = math.nan  # of a step, all workers together
    nbytes: float = math.nan  # sent per step by one worker, the mean of all
    busiest: float = math.nan  # the same of the worker that sends most
    source: str = ""  # where that figure comes from
    diverged: bool = False
    own_clocks: bool = False  # an older record: worker 0's seconds, and the median step

    @property
    def is_uneven(self) -> bool:
        """Whether the busiest worker sends noticeably more than the mean."""
        return self.busiest > _UNEVEN * self.nbytes

    def equals(self, other: Figures) -> bool:
        """Within the noise: the step of each lies between the quartiles of the other's steps, or between these and the
        other's own step, which first steps or a few long ones may have made longer."""
        return self._covers(other.step) and other._covers(self.step)

    def speed(self, base: Figures) -> float:
        """How many times as many samples per second as the baseline."""
        return self.samples / base.samples * base.step / self.step

    def _covers(self, step: float) -> bool:
        low, high = self.quartiles
        return min(low, self.step) <= step <= max(high, self.step)


def read_figures(records: list[Record], label_length: int) -> list[Figures]:
    labels = make_labels(records, label_length)
    return [_read(record, label) for record, label in zip(records, labels, strict=True)]


def say_own_clocks(figures: list[Figures]) -> str:
    """Which figures are those of older records, where some are."""
    older = [each.label for each in figures if each.own_clocks]
    if not older:
        return ""
    whose = "" if len(older) == len(figures) else f" of {join(older)}" if len(older) <= 3 else f" of {len(older)} runs"
    return f"older records: times{whose} are worker 0's own, the step is a median over all workers and steps"


def find_baseline(figures: list[Figures]) -> Figures:
    """What speeds are relative to: one worker alone, or else the first."""
    return next((each for each in figures if each.workers == 1), figures[0])


def name_baseline(base: Figures) -> str:
    """In a header, which has no room for a long name."""
    return base.label if len(base.label) <= 12 else "one worker" if base.workers == 1 else "the first"


def _read(record: Record, label: str) -> Figures:
    work = tuple(record.plan.get(key) for key in ("task", "model", "global_batch"))
    if not record.measurements or not record.steps:
        return Figures(label, record.workers, work)
    last = record.evaluations[-1] if record.evaluations else {}
    rate, deviation = record.samples_per_second
    return Figures(
        label,
        record.workers,
        work,
        accuracy=last.get("accuracy", math.nan),
        loss=last.get("loss", math.nan),
        step=record.step_seconds,
        quartiles=_quartiles(record.typical_steps),
        median=statistics.median(record.typical_steps),
        **record.anatomy,
        rate=rate,
        deviation=deviation,
        samples=statistics.median(map(sum, zip(*(m["samples"] for m in record.measurements), strict=True))),
        nbytes=record.bytes_per_step,
        busiest=max(record.sent_per_step),
        source=record.bytes_source,
        diverged=record.diverged,
        own_clocks=record.own_clocks,
    )


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
