"""Multi-Krum: the mean of the contributions that lie closest to their neighbours.

    score_i = sum of |x_i - x_j|² over the n - bad - 2 workers j nearest to i
    result = mean of the `keep` contributions with the lowest scores    none: n - bad of them

It stands `bad` bad workers of n >= 2 * bad + 3, so a little less than half, and wastes less than Krum, which it is with
`keep=1`. A contribution with NaN or infinite numbers is far from everybody. Samples do not matter: nobody is weighted.
The choice is made for every bucket alone: with small buckets different layers come from different workers.

Paper: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
descent" (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from tutti.aggregators.base import Aggregator, check_krum, krum_scores, widen
from tutti.errors import UserError
from tutti.spec import Count, Range


@dataclass
class MultiKrum(Aggregator):
    bad: Annotated[int, Range(least=0)] = 1
    keep: Count | None = None

    def check(self, workers: int) -> None:
        check_krum(self, workers, self.bad)
        if self.keep is not None and 1 < workers < self.keep + self.bad:
            raise UserError(
                f"'{self}' needs at least keep + bad = {self.keep + self.bad} workers, or bad ones are kept, "
                f"and there are {workers}; use keep={workers - self.bad} or more workers"
            )

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        size = len(contributions)
        keep = max(1, min(self.keep or size, size - self.bad))
        best = krum_scores(contributions, self.bad).topk(keep, largest=False).indices
        return widen(contributions[best]).mean(0).to(contributions.dtype)
