"""Shares of different sizes, with the same classes in each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tutti.partitions.quantity_skew import QuantitySkew

TARGETS = torch.arange(8000) % 4


def sizes(alpha: float, least: float, seed: int = 0, workers: int = 8) -> np.ndarray:
    return np.array([len(share) for share in QuantitySkew(alpha, least).split(TARGETS, workers, seed)])


def spread(alpha: float) -> float:
    return float(np.mean([sizes(alpha, 0.1, seed).std() for seed in range(20)]))


def test_a_smaller_alpha_gives_a_larger_spread() -> None:
    spreads = [spread(alpha) for alpha in (1000, 1, 0.1)]
    assert spreads == sorted(spreads)
    assert spreads[0] < 50


@pytest.mark.parametrize(("least", "fewest"), [(0.0, 1), (0.1, 100), (0.5, 500), (1.0, 1000)])
def test_nobody_has_less_than_the_least(least: float, fewest: int) -> None:
    assert min(sizes(0.01, least, seed).min() for seed in range(20)) >= fewest
    assert sizes(0.01, least).min() == fewest


def test_the_classes_are_alike() -> None:
    for share in QuantitySkew(0.5).split(TARGETS, 4, seed=0):
        counts = torch.bincount(TARGETS[share]).double()
        assert (counts - len(share) / 4).abs().max() < 4 * (len(share) * 3 / 16) ** 0.5
