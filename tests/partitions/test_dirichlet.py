"""Shares of the skew that alpha stands for, whatever the number of workers, and as equal as can be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tutti.partitions.dirichlet import Dirichlet, _round, _take

BALANCED = torch.arange(20_000) % 10


def proportions(alpha: float, workers: int, seed: int = 0, targets: Tensor = BALANCED) -> np.ndarray:
    shares = Dirichlet(alpha).split(targets, workers, seed)
    counts = np.array([np.bincount(targets[share], minlength=10) for share in shares])
    return counts / counts.sum(1, keepdims=True)


def concentration(alpha: float, workers: int) -> float:
    """The mean of sum q²: 1/K where all classes are alike, 1 where there is one."""
    return float(np.mean([(proportions(alpha, workers, seed) ** 2).sum(1).mean() for seed in range(5)]))


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 100.0])
def test_over_many_workers_the_skew_is_that_of_the_distribution(alpha: float) -> None:
    """E sum q² = (alpha + 1) / (K alpha + 1); that every sample has to go somewhere changes little."""
    assert concentration(alpha, 100) == pytest.approx((alpha + 1) / (10 * alpha + 1), rel=0.12)


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_a_smaller_alpha_gives_a_larger_skew(workers: int) -> None:
    skews = [concentration(alpha, workers) for alpha in (100, 1, 0.1, 0.01)]
    assert skews == sorted(skews)
    assert skews[0] == pytest.approx(0.1, abs=0.01)
    assert skews[-1] > 1.7 * skews[0]


def test_eight_workers_at_a_hundredth_have_hardly_more_than_two_classes() -> None:
    """A share is larger than a class, so that at least two have to be there."""
    counts = [(proportions(0.01, 8, seed) > 0.02).sum(1).mean() for seed in range(5)]
    assert 2 <= np.mean(counts) < 3


def test_nobody_is_always_last() -> None:
    """Who comes last gets what the others left, so another one must be last for another seed."""
    skews = np.mean([(proportions(0.1, 8, seed) ** 2).sum(1) for seed in range(60)], axis=0)
    assert skews.max() < 1.3 * skews.min()


def test_a_rare_class_is_as_rare_among_the_workers() -> None:
    """With a large alpha every worker has the classes in the proportions of all."""
    targets = torch.cat([torch.zeros(9000), torch.ones(1000)]).long()
    assert proportions(1000, 5, targets=targets)[:, 1] == pytest.approx(0.1, abs=0.03)


def test_a_worker_takes_its_proportions_of_what_is_there() -> None:
    leanings = np.log([0.5, 0.25, 0.25])
    assert _take(8, np.array([100, 100, 100]), leanings).tolist() == [4, 2, 2]


def test_of_a_class_that_runs_out_it_takes_what_is_left_and_more_of_the_others() -> None:
    leanings = np.log([0.5, 0.3, 0.2])
    assert _take(10, np.array([3, 100, 100]), leanings).tolist() == [3, 4, 3]
    assert _take(10, np.array([0, 4, 100]), leanings).tolist() == [0, 4, 6]
    assert _take(10, np.array([0, 5, 5]), np.array([0.0, -1e5, -2e5])).tolist() == [0, 5, 5]


def test_whole_numbers_add_up_and_are_near() -> None:
    assert _round(np.array([1.5, 2.25, 0.25]), 4).tolist() == [2, 2, 0]
    assert _round(np.array([3.0, 0.0]), 3).tolist() == [3, 0]
    assert _round(np.array([0.999999999999, 2.000000000001]), 3).tolist() == [1, 2]


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_last_one_has_the_variance_of_all_others_added_up(workers: int) -> None:
    """With a large alpha n - 1 workers have Dirichlet's variance v, and one (n - 1) v: on average 2 (n - 1) / n v."""
    alpha = 100.0
    wanted = 0.1 * 0.9 / (10 * alpha + 1) * 2 * (workers - 1) / workers
    found = np.mean([((proportions(alpha, workers, seed) - 0.1) ** 2).mean() for seed in range(200)])
    assert found == pytest.approx(wanted, rel=0.12)
