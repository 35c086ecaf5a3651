"""Few classes for each: samples sorted by class are cut into shards, and every worker gets so many of them.

    n workers with s shards each: n * s shards of N / (n * s) samples, dealt out at random

A shard lies within one class, or where classes meet in two, so that a worker sees about as many classes as it has
shards. Shares are equal: a worker's shards add up to its share, and where that does not come out even some of them have
one sample more.

Paper: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from
decentralized data" (2017).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from torch import Tensor

from tutti.errors import UserError
from tutti.partitions.base import Ints, Partition, cut_evenly, group, hand_out
from tutti.spec import Count


@dataclass
class ByClass(Partition):
    shards: Count = 2

    def deal(self, targets: Tensor, workers: int, generator: Generator) -> list[Ints]:
        classes = self.find_classes(targets)
        if workers * self.shards > len(classes):
            raise UserError(
                f"'{self}' cuts {workers} * {self.shards} shards, and there are {len(classes)} samples; "
                f"use shards={len(classes) // workers} at most"
            )
        sizes = np.array([cut_evenly(share, self.shards) for share in cut_evenly(len(classes), workers)])
        turns = generator.permutation(workers * self.shards)
        owners = np.repeat(turns // self.shards, sizes.reshape(-1)[turns])
        return hand_out(group(classes, generator), owners, workers)
