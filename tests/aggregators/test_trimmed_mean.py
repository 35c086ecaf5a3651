"""The mean without the ends."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from tutti.aggregators.base import Aggregator
from tutti.aggregators.trimmed_mean import TrimmedMean
from tutti.errors import UserError
from tutti.spec import SpecError, parse

FEWEST = 3  # workers, unless there is only one


def reference(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The formula, for the contract, with one cut off at each end."""
    return rows[0] if len(rows) == 1 else (rows.sum(0) - rows.min(0) - rows.max(0)) / (len(rows) - 2)


def combine(rows: list[float], trim: float) -> float:
    column = torch.tensor(rows, dtype=torch.float64)[:, None]
    return float(TrimmedMean(trim).combine(column, torch.ones(len(rows), dtype=torch.float64)))


def test_a_whole_number_is_how_many_go_at_each_end() -> None:
    values = [100.0, 1.0, 2.0, 6.0, -50.0]
    assert combine(values, 0) == pytest.approx(59 / 5)
    assert combine(values, 1) == 3.0
    assert combine(values, 2) == 2.0


@pytest.mark.parametrize(
    ("trim", "size", "cut"), [(0.2, 4, 0), (0.2, 5, 1), (0.29, 100, 29), (0.49, 9, 4), (0.4, 3, 1), (0.0, 7, 0)]
)
def test_below_a_half_it_is_a_share_of_the_workers(trim: float, size: int, cut: int) -> None:
    values = [float(value**2) for value in range(size)]
    assert combine(values, trim) == pytest.approx(np.mean(values[cut : size - cut]))
    TrimmedMean(trim).check(size)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("trim", [1, 2, 3])
def test_stands_as_many_as_are_cut_off(trim: int, garbage: float) -> None:
    honest = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert 1.0 <= combine([garbage] * trim + honest, trim) <= 5.0
    assert not abs(combine([garbage] * (trim + 1) + honest, trim)) < 1e9, "one more, and it gives way"


@pytest.mark.parametrize(("trim", "size"), [(1, 2), (2, 3), (2, 4), (3, 6), (9, 2)])
def test_too_few_workers(trim: int, size: int) -> None:
    """The sentence says what would work, and that does."""
    with pytest.raises(UserError, match=rf"needs at least 2 \* trim \+ 1 = {2 * trim + 1} workers") as caught:
        TrimmedMean(trim).check(size)
    advised = re.search(r"use (trim=\d+), median or more workers", str(caught.value))
    assert advised is not None
    parse(f"trimmed-mean({advised[1]})", Aggregator).check(size)
    TrimmedMean(trim).check(2 * trim + 1)
    TrimmedMean(trim).check(1)


@pytest.mark.parametrize("text", ["0.5", "0.7", "1.5", "-1"])
def test_what_is_neither_number_nor_share(text: str) -> None:
    with pytest.raises(SpecError, match=r"trim is a number of workers or a share below 0\.5|must be at least 0"):
        parse(f"trimmed-mean({text})", Aggregator)


def test_half_precision_does_not_overflow_in_the_sum() -> None:
    rows = torch.full((6, 3), 40000.0, dtype=torch.float16)
    assert TrimmedMean().combine(rows, torch.ones(6)).tolist() == [40000.0] * 3
