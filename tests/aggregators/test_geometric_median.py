"""The point with the smallest sum of distances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tutti.aggregators.geometric_median import GeometricMedian


def reference(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The formula, for the contract, with what is given by default."""
    point = np.median(rows, axis=0)
    for _ in range(8):
        pulls = [1 / max(1e-6, np.linalg.norm(row - point)) for row in rows]
        point = np.average(rows, axis=0, weights=pulls)
    return point


def combine(rows: torch.Tensor, **fields: float) -> torch.Tensor:
    return GeometricMedian(**fields).combine(rows, torch.ones(len(rows), dtype=rows.dtype))


def way(rows: torch.Tensor, point: torch.Tensor) -> float:
    return float((rows - point).norm(dim=1).sum())


@pytest.mark.parametrize("size", [3, 4, 9])
def test_no_point_nearby_is_better(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    best = combine(rows, iterations=500)
    for _ in range(50):
        nudge = torch.randn(4, generator=generator, dtype=torch.float64) * 1e-3
        assert way(rows, best) < way(rows, best + nudge)


def test_every_iteration_comes_closer() -> None:
    rows = torch.randn(7, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ways = [way(rows, combine(rows, iterations=count)) for count in range(1, 9)]
    assert ways == sorted(ways, reverse=True)
    assert ways[0] > ways[-1]


def test_how_far_away_somebody_is_does_not_matter() -> None:
    honest = torch.randn(6, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    direction = torch.ones(1, 20, dtype=torch.float64)
    far, further = (combine(torch.cat([honest, direction * length]), iterations=100) for length in (1e6, 1e12))
    torch.testing.assert_close(far, further, rtol=0, atol=1e-4)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 6e4, -6e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_stands_fewer_than_half(garbage: float, dtype: torch.dtype) -> None:
    honest = torch.randn(4, 30, generator=torch.Generator().manual_seed(0)).to(dtype)
    result = combine(torch.cat([honest, torch.full((3, 30), garbage, dtype=dtype)]))
    middle = honest.float().mean(0)
    assert (result.float() - middle).norm() < 2 * (honest.float() - middle).norm(dim=1).max()


def test_gives_way_to_more_than_half() -> None:
    rows = torch.cat([torch.randn(4, 30), torch.full((5, 30), 6e4)])
    assert (combine(rows) > 1e4).all()


def test_one_bad_number_leaves_a_worker_out() -> None:
    rows = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    spoilt = rows.clone()
    spoilt[2, 3] = math.nan
    torch.testing.assert_close(combine(spoilt), combine(rows[[0, 1, 3, 4, 5]]))


def test_where_nobody_sends_numbers_the_result_is_none() -> None:
    assert not combine(torch.full((3, 4), math.nan)).isfinite().any()


def test_all_the_same() -> None:
    """No distance at all: eps is what it is divided by."""
    assert combine(torch.full((5, 3), 2.0)).tolist() == [2.0] * 3
