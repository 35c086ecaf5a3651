"""The plain mean of all workers.

    result = sum(x_i) / n

Every worker counts the same, as in DDP, whatever its share of the batch; one with no samples (`run.samples = 0`) does
not count. It stands no bad worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tutti.aggregators.base import Aggregator


@dataclass
class Mean(Aggregator):
    linear: ClassVar[bool] = True

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        return contributions.mean(0)
