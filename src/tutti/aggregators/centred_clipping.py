"""Centred clipping: a mean in which nobody may pull further than a radius from the centre.

    v <- coordinate median
    v <- v + mean of (x_i - v) min(1, radius / |x_i - v|)    `iterations` times

One bad worker moves the result by at most radius / n each time; it stands fewer than half of the workers being bad, as
long as the radius is not much larger than the honest workers differ: within it all count in full, and a very large one
gives the mean. In the paper the centre is the last step's result. An aggregator here keeps nothing from step to step
(every worker, or only a root, may be the one that combines, and a run must go on from its saved state), so the centre
starts at the coordinate median, which stands as many bad workers; from zero a small radius would never get to where
the gradients are. A contribution with NaN or infinite numbers is left out altogether. Samples do not matter: nobody is
weighted. Lengths are those within a bucket, so the radius belongs to the size of the buckets.

Paper: Karimireddy, He, Jaggi, "Learning from history for Byzantine robust optimization" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tutti.aggregators.base import Aggregator, coordinate_median, drop_endless, widen
from tutti.spec import Count, Range


@dataclass
class CentredClipping(Aggregator):
    radius: Annotated[float, Range(least=1e-12)] = 1.0
    iterations: Count = 3

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        rows = drop_endless(widen(contributions))
        centre = coordinate_median(rows)
        for _ in range(self.iterations):
            ways = rows - centre
            shares = (self.radius / torch.linalg.vector_norm(ways, dim=1)).clamp(max=1)
            centre = centre + shares @ ways / len(rows)
        return centre.to(contributions.dtype)
