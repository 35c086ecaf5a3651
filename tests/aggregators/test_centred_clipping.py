"""Nobody pulls further than a radius."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tutti.aggregators.centred_clipping import CentredClipping


def reference(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The formula, for the contract, with what is given by default."""
    centre = np.median(rows, axis=0)
    for _ in range(3):
        lengths = np.maximum(np.linalg.norm(rows - centre, axis=1), 1e-300)
        centre = centre + np.mean(
            [(row - centre) * min(1, 1 / s) for row, s in zip(rows, lengths, strict=True)], axis=0
        )
    return centre


def combine(rows: torch.Tensor, **fields: float) -> torch.Tensor:
    return CentredClipping(**fields).combine(rows, torch.ones(len(rows), dtype=rows.dtype))


def drawn(size: int) -> torch.Tensor:
    return torch.randn(size, 20, generator=torch.Generator().manual_seed(size), dtype=torch.float64)


def test_a_large_radius_gives_the_mean_and_a_small_one_the_median() -> None:
    rows = drawn(7)
    torch.testing.assert_close(combine(rows, radius=1e6, iterations=1), rows.mean(0))
    torch.testing.assert_close(combine(rows, radius=1e-9), rows.median(0).values, rtol=0, atol=1e-8)


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("radius", [0.1, 1.0])
def test_the_result_stays_within_the_radius_of_the_median(radius: float, iterations: int) -> None:
    rows = drawn(6)
    rows[0] *= 1e9
    moved = combine(rows, radius=radius, iterations=iterations) - torch.tensor(np.median(rows.numpy(), axis=0))
    assert 0 < moved.norm() <= radius * iterations


def test_a_bad_worker_moves_it_by_a_share_of_the_radius() -> None:
    """Honest workers that agree: one iteration goes radius / n towards the bad one, however far it is."""
    for length in (10.0, 1e6, 1e12):
        rows = torch.zeros(5, 4, dtype=torch.float64)
        rows[3, 0] = length
        assert combine(rows, radius=2.0, iterations=1).tolist() == pytest.approx([0.4, 0, 0, 0])


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30, -1e6])
def test_stands_fewer_than_half(garbage: float) -> None:
    honest = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    middle = honest.mean(0)
    reach = (honest - middle).norm(dim=1).max()
    assert (combine(torch.cat([honest, torch.full((3, 30), garbage)])) - middle).norm() < 2 * reach


def test_gives_way_to_more_than_half() -> None:
    assert (combine(torch.cat([drawn(4), torch.full((5, 20), 1e6, dtype=torch.float64)])) > 1e5).all()


def test_one_bad_number_leaves_a_worker_out() -> None:
    rows = drawn(6)
    spoilt = rows.clone()
    spoilt[2, 3] = math.nan
    torch.testing.assert_close(combine(spoilt), combine(rows[[0, 1, 3, 4, 5]]))


def test_all_the_same() -> None:
    assert combine(torch.full((5, 3), 2.0)).tolist() == [2.0] * 3
