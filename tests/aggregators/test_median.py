"""The middle one, number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tutti.aggregators.median import Median

NAN, INF = float("nan"), float("inf")


def reference(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The formula, for the contract."""
    return np.median(rows, axis=0)


def combine(*rows: list[float], dtype: torch.dtype = torch.float32) -> list[float]:
    return Median().combine(torch.tensor(rows, dtype=dtype), torch.ones(len(rows), dtype=dtype)).tolist()


@pytest.mark.parametrize("size", range(1, 20))
def test_any_number_of_workers(size: int) -> None:
    """Sorted along a network that is another one for every number; with equal values too."""
    rows = np.random.default_rng(size).integers(-3, 4, (size, 200)).astype(np.float64)
    np.testing.assert_array_equal(Median().combine(torch.tensor(rows), torch.ones(size)), np.median(rows, axis=0))


def test_more_columns_than_are_sorted_at_once() -> None:
    rows = torch.randn(5, 2**16 + 7, generator=torch.Generator().manual_seed(0))
    assert Median().combine(rows, torch.ones(5)).equal(rows.median(0).values)


def test_workers_may_disagree_from_number_to_number() -> None:
    assert combine([1.0, 9.0], [2.0, 1.0], [9.0, 2.0]) == [2.0, 2.0]


def test_nan_counts_as_the_largest() -> None:
    """As infinity does: both move the middle by one place, and no further."""
    assert combine([1.0], [2.0], [3.0], [4.0], [NAN]) == combine([1.0], [2.0], [3.0], [4.0], [INF]) == [3.0]
    assert combine([NAN], [2.0], [4.0], [1.0]) == [3.0]
    assert combine([1.0], [2.0], [3.0], [4.0], [-INF]) == [2.0]


@pytest.mark.parametrize("size", [3, 4, 5, 8])
@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30, -1e30])
def test_stands_fewer_than_half(size: int, garbage: float) -> None:
    bad = (size - 1) // 2
    honest = torch.randn(size - bad, 50, generator=torch.Generator().manual_seed(size))
    rows = torch.cat([torch.full((bad, 50), garbage), honest])
    result = Median().combine(rows, torch.ones(size))
    assert (result >= honest.amin(0)).all()
    assert (result <= honest.amax(0)).all()
    more = torch.cat([torch.full((size // 2 + 1, 50), garbage), honest[: size - size // 2 - 1]])
    assert not (Median().combine(more, torch.ones(size)).abs() < 1e9).any(), "half and one more decide"


def test_the_smallest_numbers_of_half_precision_are_not_lost() -> None:
    least = 2.0**-24
    assert combine([least], [least], [least], dtype=torch.float16) == [least]
