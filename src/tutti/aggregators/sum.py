"""The sum of all workers.

    result = sum(x_i)

With gradients it multiplies the learning rate by the number of workers. It stands no bad worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tutti.aggregators.base import Aggregator


@dataclass
class Sum(Aggregator):
    linear: ClassVar[bool] = True
    normalised: ClassVar[bool] = False

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        return contributions.sum(0)
