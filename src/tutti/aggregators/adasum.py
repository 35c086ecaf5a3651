"""Adasum: contributions that agree are averaged, contributions at right angles are added.

    A(a, b) = (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b
    result = A(A(x_1, x_2), A(x_3, x_4)) ...    neighbours first, up a tree; tensor by tensor

Two equal contributions give that contribution, two that have nothing to do with each other give their sum, so the
learning rate need not follow the number of workers. One that is zero changes nothing. Any number of workers will do: on
a level of the tree with an odd number the last one goes up as it is. Which workers are neighbours matters for the
result; samples do not: nobody is weighted. It stands no bad worker.

Paper: Maleki et al., "Scaling distributed training with adaptive summation" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tutti.aggregators.base import Aggregator, widen


@dataclass
class Adasum(Aggregator):
    by_layer: ClassVar[bool] = True

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        rows = widen(contributions)
        while len(rows) > 1:
            paired = len(rows) // 2 * 2
            rows = torch.cat([_add_pairs(rows[0:paired:2], rows[1:paired:2]), rows[paired:]])
        return rows[0].to(contributions.dtype)


def _add_pairs(ones: Tensor, others: Tensor) -> Tensor:
    products = torch.linalg.vecdot(ones, others)
    return _without_half(products, ones) + _without_half(products, others)


def _without_half(products: Tensor, rows: Tensor) -> Tensor:
    """Each row less half of what its partner has in common with it."""
    squares = torch.linalg.vecdot(rows, rows)
    shared = torch.where(squares == 0, 0, products / (2 * squares))
    return (1 - shared)[:, None] * rows
