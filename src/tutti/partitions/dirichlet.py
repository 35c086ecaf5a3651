"""Other classes for each, in equal shares: every worker draws how much of each class it would like to have.

    q_i ~ Dir(alpha * prior),    prior: how frequent each class is, 1 on average
    one worker after another, in random order, fills its share with classes in the proportions q_i;
    of a class that runs out it takes what is left, and more of the others, in their proportions

With classes of equal size every parameter is alpha, as in the papers on decentralised training: at alpha = 1 the
classes of a worker differ mildly, at 0.1 a few prevail, at 0.01 hardly more than one or two are there; a large alpha is
as good as iid. Every sample has one owner and shares differ by at most one. That has its price: nobody can have more of
a class than there is, and the worker that is served last gets what the others left.

So the last worker's classes are not Dirichlet's. For a large alpha, where no class runs out, the variance of its shares
of the classes is that of the n - 1 others added up, n - 1 times theirs. With ten classes of equal size and alpha = 10
it was 2.7 times the first worker's for 4 workers, 5.4 for 8 and 8.9 for 16; with alpha = 1 it was 1.3, 2.1 and 3.2
(there the last but one had 0.9, 1.3 and 1.9); with alpha = 0.1 between 0.9 and 1.2. Which worker is served last depends
on the seed. Shares that are all Dirichlet's would either overlap or differ in size.

Paper: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual classification"
(2019), where the prior adds up to 1; Yurochkin et al., "Bayesian nonparametric federated learning of neural networks"
(2019), where alpha is as here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.random import Generator
from torch import Tensor

from tutti.partitions.base import Floats, Ints, Partition, cut_evenly, draw_leanings, group, hand_out, normalise
from tutti.spec import Range


@dataclass
class Dirichlet(Partition):
    alpha: Annotated[float, Range(least=1e-4, most=1e6)] = 0.1

    def deal(self, targets: Tensor, workers: int, generator: Generator) -> list[Ints]:
        classes = self.find_classes(targets)
        left = np.bincount(classes)
        leanings = draw_leanings((workers, len(left)), self.alpha * left / left.mean(), generator)
        shares = cut_evenly(len(classes), workers)
        counts = np.zeros(leanings.shape, np.int64)
        for worker in generator.permutation(workers):
            counts[worker] = _take(shares[worker], left, leanings[worker])
            left = left - counts[worker]
        owners = np.concatenate([np.repeat(np.arange(workers), of_class) for of_class in counts.T])
        return hand_out(group(classes, generator), owners, workers)


def _take(share: int, left: Ints, leanings: Floats) -> Ints:
    """How many of each class a worker gets: min(left, scale * q), with the scale that fills its share."""
    amounts = left.astype(np.float64)
    empty = left == 0  # once this worker has taken what it gets
    while not empty.all():
        amounts[~empty] = (share - left[empty].sum()) * normalise(leanings[~empty])
        short = amounts > left
        if not short.any():
            break
        amounts[short] = left[short]
        empty |= short
    return _round(amounts, share)


def _round(amounts: Floats, total: int) -> Ints:
    """Whole numbers that add up: rounded down, and one more for those that lose most by it."""
    counts = np.floor(amounts).astype(np.int64)
    losers = np.argsort(counts - amounts, kind="stable")[: total - counts.sum()]
    counts[losers] += 1
    return counts
