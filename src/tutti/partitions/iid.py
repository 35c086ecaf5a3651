"""The same for all: samples are dealt out at random.

In training every epoch deals them out anew, whatever worker they went to before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from torch import Tensor

from tutti.partitions.base import Ints, Partition


@dataclass
class Iid(Partition):
    def deal(self, targets: Tensor, workers: int, generator: Generator) -> list[Ints]:
        return np.array_split(generator.permutation(len(targets)), workers)
