"""The one among its neighbours, as it is."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from tutti.aggregators.base import Aggregator
from tutti.aggregators.krum import Krum
from tutti.errors import UserError
from tutti.spec import parse

FEWEST = 5  # workers, unless there is only one
GARBAGE = (math.nan, math.inf, -math.inf, 1e30, 1e3)


def reference(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The formula, for the contract, with one bad worker."""
    return rows[np.argmin(scores(rows, bad=1))] if len(rows) > 1 else rows[0]


def scores(rows: np.ndarray, bad: int) -> list[float]:
    each = [sorted(((row - other) ** 2).sum() for other in rows) for row in rows]
    return [sum(squares[1 : len(rows) - bad - 1]) for squares in each]  # the first one is the row itself


def combine(rows: torch.Tensor, bad: int = 1) -> torch.Tensor:
    return Krum(bad).combine(rows, torch.ones(len(rows), dtype=rows.dtype))


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [9, 12, 17])
def test_chooses_by_its_scores(size: int, bad: int) -> None:
    rows = np.random.default_rng(size).normal(size=(size, 20))
    assert combine(torch.tensor(rows), bad).tolist() == rows[np.argmin(scores(rows, bad))].tolist()


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("bad", [1, 2, 3])
def test_the_chosen_one_is_honest(bad: int, garbage: float) -> None:
    """Also when the bad ones all say the same and so have each other for neighbours."""
    size = 2 * bad + 3
    honest = torch.randn(size - bad, 30, generator=torch.Generator().manual_seed(bad))
    result = combine(torch.cat([torch.full((bad, 30), garbage), honest]), bad)
    assert any(result.equal(row) for row in honest)


def test_more_bad_ones_than_it_was_told_of() -> None:
    """Four of seven who say the same are the neighbourhood."""
    rows = torch.cat([torch.full((4, 30), 1e3), torch.randn(3, 30)])
    assert combine(rows, bad=2).tolist() == [1e3] * 30


def test_one_bad_number_makes_a_bad_worker() -> None:
    rows = torch.zeros(5, 10)
    rows[:, 0] = torch.arange(5.0)
    rows[2, 7] = math.nan
    assert combine(rows).isfinite().all()


def test_tells_close_contributions_apart_far_from_the_origin() -> None:
    """Weights differ by little from worker to worker: nothing may be lost to the squares of the weights themselves."""
    near = torch.tensor([0.0, 1.0, 2.0, 3.0, 40.0])[:, None] * 2.0**-9
    rows = (1000 + near).expand(-1, 50).contiguous()
    assert combine(rows).equal(rows[np.argmin(scores(rows.double().numpy(), 1))])


@pytest.mark.parametrize(("bad", "size"), [(0, 2), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (5, 8)])
def test_too_few_workers(bad: int, size: int) -> None:
    """The sentence says what would work, and that does."""
    needed = 2 * bad + 3
    with pytest.raises(
        UserError, match=rf"needs at least 2 \* bad \+ 3 = {needed} workers, and there are {size}"
    ) as caught:
        Krum(bad).check(size)
    advised = re.search(r"use (?:(bad=\d+), )?median or more workers$", str(caught.value))
    assert advised is not None
    assert (advised[1] is None) == (size < 3)
    parse(f"krum({advised[1]})" if advised[1] else "median", Aggregator).check(size)
    Krum(bad).check(needed)
    Krum(bad).check(1)
