"""Much for some and little for others: the sizes of the shares are drawn, and samples are dealt out at random.

    (p_1, ..., p_n) ~ Dir(alpha, ..., alpha),    worker i gets least * N / n + (1 - least) * p_i * N of N samples

The smaller alpha, the more they differ. Everybody gets one sample at least, and `least` of an equal share. All workers
take as many steps, so those with more samples take larger batches, and an epoch has at most as many steps as the
smallest share has samples.

Paper: Li, Diao, Chen, He, "Federated learning on non-IID data silos: an experimental study" (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.random import Generator
from torch import Tensor

from tutti.partitions.base import Ints, Partition, draw_leanings, normalise
from tutti.spec import Range


@dataclass
class QuantitySkew(Partition):
    alpha: Annotated[float, Range(least=1e-4, most=1e6)] = 0.5
    least: Annotated[float, Range(least=0, most=1)] = 0.1

    even: ClassVar[bool] = False

    def deal(self, targets: Tensor, workers: int, generator: Generator) -> list[Ints]:
        samples = len(targets)
        floor = max(1, int(self.least * samples / workers))
        rest = samples - workers * floor
        proportions = normalise(draw_leanings((workers,), self.alpha, generator))
        ends = np.rint(rest * proportions.cumsum()).astype(np.int64) + floor * np.arange(1, workers + 1)
        return np.split(generator.permutation(samples), ends[:-1])
