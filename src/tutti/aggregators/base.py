"""The contract of an aggregator: many contributions in, one result out.

A `linear` aggregator may also run on routes where only partial sums travel: the result is then
sum(w_i x_i) or, when it is `normalised`, sum(w_i x_i) / sum(w_i), with w_i = weight(samples of worker i).

Behind the contract stand the tools that several robust members share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from tutti.errors import UserError
from tutti.spec import Member

_AT_ONCE: Final = 2**16  # columns sorted together: few enough for the processor's cache


@dataclass
class Aggregator(Member):
    axis: ClassVar[str] = "aggregators"
    noun: ClassVar[str] = "aggregator"
    linear: ClassVar[bool] = False
    normalised: ClassVar[bool] = True
    by_layer: ClassVar[bool] = False  # called for every tensor alone, not for a whole bucket

    @abstractmethod
    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        """A row per worker and a weight per worker -> one row."""

    def weight(self, samples: float) -> float:
        """How much a contribution from this many samples counts; one from no samples counts nothing."""
        return 1.0 if samples else 0.0


# --- tools -----------------------------------------------------------------------------------------------------------


def widen(rows: Tensor) -> Tensor:
    """Half precision as float32: squares and sums over a bucket need the room."""
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


def drop_endless(rows: Tensor) -> Tensor:
    """Without the workers whose contribution has no finite length (NaN, infinite, or too large to be squared).

    Where nobody's has one, all rows stay, and the result is garbage as well.
    """
    finite = torch.linalg.vector_norm(rows, dim=1).isfinite()
    return rows if finite.all() or not finite.any() else rows[finite]


def coordinate_median(rows: Tensor) -> Tensor:
    """The middle value of every column, or the mean of the two in the middle; NaN counts as the largest."""
    return mean_without_ends(rows, (len(rows) - 1) // 2)


def mean_without_ends(rows: Tensor, cut: int) -> Tensor:
    """The mean of every column without its `cut` smallest and `cut` largest values; NaN counts as the largest."""
    return widen(_sort_columns(rows)[cut : len(rows) - cut]).mean(0).to(rows.dtype)


def _sort_columns(rows: Tensor) -> Tensor:
    """Every column in ascending order; NaN becomes infinity.

    Compares whole rows along a sorting network: for eight workers on one core four times faster than torch.sort.
    """
    ordered = rows.clone(memory_format=torch.contiguous_format)
    for columns in ordered.split(_AT_ONCE, dim=1):
        columns.nan_to_num_(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        for low, high in _comparisons(len(rows)):
            smaller = torch.minimum(columns[low], columns[high])
            torch.maximum(columns[low], columns[high], out=columns[high])
            columns[low].copy_(smaller)
    return ordered


def _comparisons(size: int) -> Iterator[tuple[int, int]]:
    """Batcher's odd-even merge sort for any number of rows: which pairs are put in order, one after another."""
    run = 1
    while run < size:
        reach = run
        while reach >= 1:
            for start in range(reach % run, size - reach, 2 * reach):
                for low in range(start, min(start + reach, size - reach)):
                    if low // (2 * run) == (low + reach) // (2 * run):
                        yield low, low + reach
            reach //= 2
        run *= 2


def krum_scores(rows: Tensor, bad: int) -> Tensor:
    """Per worker the sum of squared distances to its n - bad - 2 nearest others; infinite where there is no number."""
    size = len(rows)
    squares = torch.pdist(widen(rows)).square().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    one, other = torch.triu_indices(size, size, 1, device=rows.device)
    distances = squares.new_full((size, size), torch.inf)
    distances[one, other] = distances[other, one] = squares
    return distances.sort(1).values[:, : max(1, size - bad - 2)].sum(1)


def check_krum(member: Aggregator, workers: int, bad: int) -> None:
    """The condition of its paper, 2 * bad + 2 < n; one worker alone has nobody to mistrust."""
    needed, most = 2 * bad + 3, (workers - 3) // 2
    if 1 < workers < needed:
        smaller = f"bad={most}, " if most >= 0 else ""
        raise UserError(
            f"'{member}' needs at least 2 * bad + 3 = {needed} workers, and there are {workers}; "
            f"use {smaller}median or more workers"
        )
