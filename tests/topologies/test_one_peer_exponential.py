"""One peer per step, twice as far ahead each time."""

from __future__ import annotations

import numpy as np
import pytest

from tutti.graph import make_mixing
from tutti.topologies.one_peer_exponential import OnePeerExponential


def after(size: int, first: int = 0) -> np.ndarray:
    """What is left of everybody's value after one period."""
    values = np.random.default_rng(size).normal(size=size)
    values -= values.mean()
    for step in range(first, first + OnePeerExponential().period(size)):
        values = make_mixing(OnePeerExponential(), size, step) @ values
    return values


def test_peers_step_by_step() -> None:
    assert [OnePeerExponential().peers(0, 8, step) for step in range(5)] == [[1], [2], [4], [1], [2]]
    assert OnePeerExponential().peers(7, 8, 2) == [3]
    assert [OnePeerExponential().peers(0, 2, step) for step in range(3)] == [[1], [1], [1]]


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 64])
def test_the_exact_mean_after_log2_n_steps(size: int, first: int) -> None:
    assert np.abs(after(size, first)).max() < 1e-12


@pytest.mark.parametrize("size", [3, 5, 6, 7, 12])
def test_only_near_it_where_n_is_no_power_of_two(size: int) -> None:
    assert np.abs(after(size)).max() > 1e-3
