"""Unequal shares of one batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from tutti.aggregators.weighted_mean import WeightedMean


def reference(rows: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """The formula, for the contract."""
    return np.average(rows, axis=0, weights=samples)


def gradient(features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    functional.mse_loss(features @ weight, targets).backward()
    assert weight.grad is not None
    return weight.grad


def test_equals_one_worker_on_the_whole_batch() -> None:
    """Gradients of mean losses over shares of 1, 2 and 7 samples: together the gradient of the mean over all ten."""
    features, targets = torch.randn(10, 4, dtype=torch.float64), torch.randn(10, dtype=torch.float64)
    shares = list(zip(features.split([1, 2, 7]), targets.split([1, 2, 7]), strict=True))
    weights = torch.tensor([WeightedMean().weight(len(t)) for _, t in shares], dtype=torch.float64)
    together = WeightedMean().combine(torch.stack([gradient(f, t) for f, t in shares]), weights)
    torch.testing.assert_close(together, gradient(features, targets))


@pytest.mark.parametrize("samples", [[0, 3], [3, 0]])
def test_who_had_no_samples_does_not_count(samples: list[float]) -> None:
    rows = torch.tensor([[float(s > 0)] for s in samples])
    assert WeightedMean().combine(rows, torch.tensor(samples, dtype=torch.float32)).tolist() == [1.0]
