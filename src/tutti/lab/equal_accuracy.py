"""Speed at equal accuracy: when runs reach the highest accuracy that all of them reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tutti.lab.figures import Figures
from tutti.lab.record import Record

_APART = 0.01  # of accuracy: more than this is a difference


@dataclass(frozen=True)
class Reached:
    accuracy: float
    times: list[tuple[float, str]]  # seconds of training and label, the first to reach it first


def find_equal(records: Sequence[Record], figures: Sequence[Figures]) -> Reached | None:
    """Of the runs that learnt; None where there are not two of them."""
    points = {
        each.label: [(e["accuracy"], e["seconds"]) for e in record.evaluations]
        for record, each in zip(records, figures, strict=True)
        if math.isfinite(each.accuracy) and not each.diverged
    }
    if len(points) < 2:
        return None
    common = min(max(accuracy for accuracy, _ in reached) for reached in points.values())
    times = [(next(s for accuracy, s in reached if accuracy >= common), label) for label, reached in points.items()]
    return Reached(common, sorted(times))


def differ(figures: Sequence[Figures]) -> bool:
    """Whether the accuracies at the end differ, of the runs that learnt."""
    known = [each.accuracy for each in figures if math.isfinite(each.accuracy) and not each.diverged]
    return len(known) > 1 and max(known) - min(known) > _APART
