"""Krum: the one contribution that lies closest to its neighbours, as it is.

    score_i = sum of |x_i - x_j|² over the n - bad - 2 workers j nearest to i
    result = x_k,    k = argmin score_i

It stands `bad` bad workers of n >= 2 * bad + 3, so a little less than half. A contribution with NaN or infinite numbers
is far from everybody. Of the honest ones all but one are thrown away. Samples do not matter: nobody is weighted. The
choice is made for every bucket alone: with small buckets different layers come from different workers, with one large
bucket (`bucket=1GiB`) all come from the same.

Paper: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
descent" (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from tutti.aggregators.base import Aggregator, check_krum, krum_scores
from tutti.spec import Range


@dataclass
class Krum(Aggregator):
    bad: Annotated[int, Range(least=0)] = 1

    def check(self, workers: int) -> None:
        check_krum(self, workers, self.bad)

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        return contributions[krum_scores(contributions, self.bad).argmin()]
