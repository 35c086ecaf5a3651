"""The coordinate median: for every number the middle one of what the workers say.

    result[j] = median(x_1[j] ... x_n[j])    an even number of workers: the mean of the two in the middle

It stands fewer than half of the workers being bad: with them the result still lies between two honest values, number by
number. NaN counts as the largest value there is, so a worker that sends it is one that sends something huge. Samples do
not matter: nobody is weighted.

Paper: Yin, Chen, Kannan, Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tutti.aggregators.base import Aggregator, coordinate_median


@dataclass
class Median(Aggregator):
    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        return coordinate_median(contributions)
