"""Everybody counts the same."""

from __future__ import annotations

import numpy as np
import torch

from tutti.aggregators.mean import Mean


def reference(rows: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """The formula, for the contract."""
    return rows.sum(0) / len(samples)


def test_samples_do_not_matter() -> None:
    rows, aggregator = torch.tensor([[2.0], [4.0]]), Mean()
    weights = torch.tensor([aggregator.weight(1), aggregator.weight(99)])
    assert aggregator.combine(rows, weights).tolist() == [3.0]
