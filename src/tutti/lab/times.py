"""One clock for all workers of a run, read off their measurements.

Every worker logs seconds since the barrier at the start. A moment of the run is that of its slowest worker, and an
evaluation is subtracted only while all workers evaluate:

    pause_k       = max(0, min_i leave_ik - max_i enter_ik)
    evaluation k  = max_i enter_ik - (pause_1 + ... + pause_{k-1})
    end of step s = max_i end_is - the pauses before it
    step s        = end of step s - end of step s-1; all steps together are the run's seconds of training

A worker that reaches an evaluation before the slowest one waits there, as it would in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self


@dataclass(frozen=True)
class Times:
    ends: list[float]  # of every step, on the common clock
    evaluations: list[float]  # when each of them began, on the common clock
    waited: list[float]  # per worker: at evaluations, for slower workers, in the whole run

    @property
    def steps(self) -> list[float]:
        """The seconds of every step; their sum is the whole."""
        return [end - begin for begin, end in pairwise([0.0, *self.ends])]

    @property
    def total(self) -> float:
        return self.ends[-1]

    @classmethod
    def read(cls, measurements: list[dict[str, Any]]) -> Self | None:
        """None for records from before workers logged these."""
        if not measurements or not all(m.get("ends") for m in measurements):
            return None
        entries = [m["evaluations"] for m in measurements]
        enters, leaves = (_by_evaluation(entries, key) for key in ("enter", "leave"))
        steps = [int(entry["step"]) for entry in entries[0]]
        pauses = [max(0.0, min(left) - max(entered)) for entered, left in zip(enters, leaves, strict=True)]
        before = [sum(pauses[:index]) for index in range(len(pauses) + 1)]
        done = [sum(step < number for step in steps) for number in range(1, len(measurements[0]["ends"]) + 1)]
        moments = map(max, zip(*(m["ends"] for m in measurements), strict=True))
        waited = [sum(max(each) - each[rank] for each in enters) for rank in range(len(measurements))]
        return cls(
            [moment - before[index] for moment, index in zip(moments, done, strict=True)],
            [max(entered) - earlier for entered, earlier in zip(enters, before, strict=False)],
            waited,
        )


def _by_evaluation(entries: Sequence[Sequence[dict[str, float]]], key: str) -> list[list[float]]:
    """For every evaluation, the moment of every worker."""
    return [[entry[key] for entry in each] for each in zip(*entries, strict=True)]
