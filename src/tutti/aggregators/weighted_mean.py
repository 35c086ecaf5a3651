"""The mean weighted by samples: a worker with twice the samples counts twice.

With gradients of mean losses it equals one worker on the whole batch, also when the workers' shares differ in size. It
stands no bad worker.

    result = sum(s_i x_i) / sum(s_i),    s_i = samples of worker i
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tutti.aggregators.base import Aggregator


@dataclass
class WeightedMean(Aggregator):
    linear: ClassVar[bool] = True

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        return (weights / weights.sum()) @ contributions

    def weight(self, samples: float) -> float:
        return samples
