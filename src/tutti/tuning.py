"""Finding the fastest of a few sizes while the work goes on: each is tried for some steps, the rounds interleaved.

Every worker times its own steps; what they agree on is made elsewhere, from everybody's figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_WARM_UP = 3  # steps before the first trial: the first ones load, allocate and connect
_ROUNDS = 2  # through all candidates
_SETTLE, _TIMED = 1, 3  # steps of a trial that are not timed, and that are


class Tuner:
    """Says which candidate the next step is to use; `seconds()` when all have been tried."""

    def __init__(self, candidates: Sequence[int]) -> None:
        self.candidates = list(candidates)
        self._times: list[list[float]] = [[] for _ in self.candidates]
        self._steps = 0

    @property
    def current(self) -> int:
        """Index of the candidate whose turn it is."""
        return max(0, self._steps - _WARM_UP) // (_SETTLE + _TIMED) % len(self.candidates)

    @property
    def finished(self) -> bool:
        return self._steps >= _WARM_UP + _ROUNDS * len(self.candidates) * (_SETTLE + _TIMED)

    def note(self, seconds: float) -> None:
        """A step with the current candidate took so long."""
        tried = self._steps - _WARM_UP
        if tried >= 0 and tried % (_SETTLE + _TIMED) >= _SETTLE:
            self._times[self.current].append(seconds)
        self._steps += 1

    def seconds(self) -> list[float]:
        """The median step of each candidate."""
        return [statistics.median(times) for times in self._times]


def find_sizes(total: int, least: int = 2**16, steps: int = 4) -> list[int]:
    """Sizes to try for something of so many bytes: all at once, a quarter, a sixteenth, ..."""
    sizes = [max(1, total) // 4**k for k in range(steps)]
    return [size for k, size in enumerate(sizes) if k == 0 or size >= least]
