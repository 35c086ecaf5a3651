"""The geometric median: the point with the smallest sum of distances to all contributions.

    z <- coordinate median
    z <- sum(b_i x_i) / sum(b_i),    b_i = 1 / max(eps, |z - x_i|)    `iterations` times (Weiszfeld, smoothed)

It stands fewer than half of the workers being bad: however far away one is, it pulls with the same force as any other.
From the mean, which one huge contribution takes along, it would be a long way back: the start is the coordinate median,
which stands as many. A contribution with NaN or infinite numbers is left out altogether. Samples do not matter: nobody
is weighted. Distances are those within a bucket: with small buckets a worker may count for one layer and hardly for
another.

Paper: Pillutla, Kakade, Harchaoui, "Robust aggregation for federated learning" (2022); Chen, Su, Xu, "Distributed
statistical machine learning in adversarial settings: Byzantine gradient descent" (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tutti.aggregators.base import Aggregator, coordinate_median, drop_endless, widen
from tutti.spec import Count, Range


@dataclass
class GeometricMedian(Aggregator):
    iterations: Count = 8
    eps: Annotated[float, Range(least=1e-12)] = 1e-6

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        rows = drop_endless(widen(contributions))
        point = coordinate_median(rows)
        for _ in range(self.iterations):
            distances = torch.cdist(point[None], rows, compute_mode="donot_use_mm_for_euclid_dist")[0]  # exact
            pulls = 1 / distances.clamp(min=self.eps)
            point = (pulls / pulls.sum()) @ rows
        return point.to(contributions.dtype)
