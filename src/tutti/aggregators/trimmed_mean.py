"""The trimmed mean: for every number the mean of what is left when the largest and smallest are cut off.

    result[j] = mean of x_1[j] ... x_n[j] without the t smallest and the t largest

`trim` is t itself (a whole number), or below 0.5 a share of the workers: t = floor(trim * n), which is nobody where the
workers are few. It stands t bad workers of more than 2t. NaN counts as the largest value there is and goes first.
Samples do not matter: nobody is weighted.

Paper: Yin, Chen, Kannan, Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates" (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from tutti.aggregators.base import Aggregator, mean_without_ends
from tutti.errors import UserError
from tutti.spec import Range


@dataclass
class TrimmedMean(Aggregator):
    trim: Annotated[float, Range(least=0)] = 1.0

    def __post_init__(self) -> None:
        if self.trim >= 0.5 and self.trim != int(self.trim):
            raise ValueError(f"trim is a number of workers or a share below 0.5, not {self.trim:g}")

    def check(self, workers: int) -> None:
        needed = 2 * self._count(workers) + 1
        if 1 < workers < needed:
            most = (workers - 1) // 2
            raise UserError(
                f"'{self}' needs at least 2 * trim + 1 = {needed} workers, and there are {workers}; "
                f"use trim={most}, median or more workers"
            )

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        size = len(contributions)
        cut = min(self._count(size), (size - 1) // 2)  # one worker alone loses nothing
        return mean_without_ends(contributions, cut)

    def _count(self, size: int) -> int:
        """How many go at each end; a share such as 0.29 of 100 is not to fall short of 29 by rounding."""
        return int(self.trim) if self.trim >= 1 else math.floor(self.trim * size + 1e-9)
