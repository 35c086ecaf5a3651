"""One worker, one vote."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tutti.aggregators.sign_vote import SignVote


def reference(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The formula, for the contract: who has more votes."""
    return np.where((rows > 0).sum(0) == (rows < 0).sum(0), 0, np.where((rows > 0).sum(0) > (rows < 0).sum(0), 1, -1))


def vote(*values: float, dtype: torch.dtype = torch.float32) -> float:
    return float(SignVote().combine(torch.tensor(values, dtype=dtype)[:, None], torch.ones(len(values), dtype=dtype)))


def test_the_majority_has_it() -> None:
    assert vote(0.1, 0.2, -100.0) == 1.0
    assert vote(0.1, -0.2, -1e-30) == -1.0


def test_equal_votes_are_none() -> None:
    assert vote(5.0, -1.0) == vote(0.0, 0.0) == vote(3.0, 1.0, 0.0, -1.0, -1.0) == 0.0


def test_nan_does_not_vote_and_infinity_has_one() -> None:
    assert vote(math.nan, -1.0) == -1.0
    assert vote(math.inf, -1.0, -1.0) == -1.0
    assert vote(math.nan, math.nan) == 0.0


def test_one_worker_alone_takes_its_own_signs() -> None:
    assert vote(-3.0) == -1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_majority_of_one_among_many(dtype: torch.dtype) -> None:
    """Half precision cannot count so far, and need not."""
    assert vote(*[1.0] * 3001, *[-1.0] * 3000, dtype=dtype) == 1.0
