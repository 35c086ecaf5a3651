"""The figures of records side by side, and how two of them compare; nan stands for a figure that there is not."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from tutti.lab.labels import make_labels
from tutti.lab.record import Record


@dataclass(frozen=True, eq=False)
class Figures:
    """What tables and pictures show of one record; times in seconds, of a median step."""

    label: str  # distinct among the records it stands with
    workers: int
    work: tuple[object, ...]  # only steps that do the same work compare
    accuracy: float = math.nan
    loss: float = math.nan
    step: float = math.nan
    quartiles: tuple[float, float] = (math.nan, math.nan)  # of the steps' seconds
    compute: float = math.nan
    hidden: float = math.nan
    exposed: float = math.nan
    rate: float = math.nan  # samples per second: mean and standard deviation over the steps
    deviation: float = math.nan
    samples: float = math.nan  # of a step, all workers together
    nbytes: float = math.nan  # sent per step by one worker
    source: str = ""  # where that figure comes from
    diverged: bool = False

    def equals(self, other: Figures) -> bool:
        """Within the noise: the median step of each lies between the quartiles of the other's."""
        return self._covers(other.step) and other._covers(self.step)

    def speed(self, base: Figures) -> float:
        """How many times as many samples per second as the baseline, at the median step."""
        return self.samples / base.samples * base.step / self.step

    def _covers(self, step: float) -> bool:
        return self.quartiles[0] <= step <= self.quartiles[1]


def read_figures(records: list[Record], label_length: int) -> list[Figures]:
    labels = make_labels(records, label_length)
    passed = _all_by_interface(records)
    return [_read(record, label, passed) for record, label in zip(records, labels, strict=True)]


def _all_by_interface(records: list[Record]) -> bool:
    """Bytes compare only when counted in one way: where one run has but the interface's count, all take it."""
    measured = [record for record in records if record.measurements]
    return all(record.passed_per_step is not None for record in measured) and any(
        record.bytes_source == "interface" for record in measured
    )


def find_baseline(figures: list[Figures]) -> Figures:
    """What speeds are relative to: one worker alone, or else the first."""
    return next((each for each in figures if each.workers == 1), figures[0])


def name_baseline(base: Figures) -> str:
    """In a header, which has no room for a long name."""
    return base.label if len(base.label) <= 12 else "one worker" if base.workers == 1 else "the first"


def _read(record: Record, label: str, passed: bool) -> Figures:
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
        quartiles=_quartiles([s for m in record.measurements for s in record.counted(m["seconds"])]),
        **record.anatomy,
        rate=rate,
        deviation=deviation,
        samples=statistics.median(map(sum, zip(*(m["samples"] for m in record.measurements), strict=True))),
        nbytes=statistics.fmean(record.passed_per_step or [0.0]) if passed else record.bytes_per_step,
        source="interface" if passed else record.bytes_source,
        diverged=record.diverged,
    )


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
