"""What agrees is averaged, what does not meet is added; tensor by tensor, up a tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tutti.aggregators.adasum import Adasum


def reference(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The formula, for the contract: a list that is folded two by two."""
    level = list(rows)
    while len(level) > 1:
        pairs = [pair(*level[i : i + 2]) if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
        level = pairs
    return level[0]


def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not a.any() or not b.any():
        return a + b
    return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b


def combine(*rows: list[float], dtype: torch.dtype = torch.float64) -> list[float]:
    return Adasum().combine(torch.tensor(rows, dtype=dtype), torch.ones(len(rows), dtype=dtype)).tolist()


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_equal_contributions_give_that_contribution(size: int) -> None:
    assert combine(*[[3.0, -4.0]] * size) == [3.0, -4.0]


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_contributions_at_right_angles_are_added(size: int) -> None:
    assert combine(*(torch.eye(size) * 2.0).tolist()) == [2.0] * size


def test_a_worker_without_a_gradient_changes_nothing() -> None:
    assert combine([0.0, 0.0], [3.0, 1.0]) == combine([3.0, 1.0], [0.0, 0.0]) == [3.0, 1.0]
    assert combine([0.0, 0.0], [0.0, 0.0]) == [0.0, 0.0]


def test_length_does_not_matter_between_parallel_ones() -> None:
    """The mean, however different the two are in length."""
    assert combine([8.0, 0.0], [2.0, 0.0]) == pytest.approx([5.0, 0.0])


def test_squares_of_half_precision_do_not_overflow() -> None:
    assert combine(*[[30000.0] * 100] * 4, dtype=torch.float16) == [30000.0] * 100
    assert combine(*[[1e-6] * 10] * 4, dtype=torch.float16) == pytest.approx([1e-6] * 10, rel=0.05)


def test_the_last_of_an_odd_number_goes_up_as_it_is() -> None:
    a, b, c = np.random.default_rng(0).normal(size=(3, 4))
    np.testing.assert_allclose(combine(a.tolist(), b.tolist(), c.tolist()), pair(pair(a, b), c))


def test_a_worker_with_the_wrong_sign_takes_its_neighbour_along() -> None:
    """The pair vanishes; the last of an odd number has all others for a neighbour."""
    good, flipped = [3.0, 1.0], [-3.0, -1.0]
    assert combine(good, flipped, good, good) == good
    assert combine(good, good, flipped) == [0.0, 0.0]
