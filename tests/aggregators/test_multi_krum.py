"""The mean of those among their neighbours."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from tutti.aggregators.base import Aggregator
from tutti.aggregators.multi_krum import MultiKrum
from tutti.errors import UserError
from tutti.spec import parse

FEWEST = 5  # workers, unless there is only one


def reference(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The formula, for the contract, with one bad worker and all others kept."""
    return chosen_mean(rows, bad=1, keep=len(rows) - 1) if len(rows) > 1 else rows[0]


def chosen_mean(rows: np.ndarray, bad: int, keep: int) -> np.ndarray:
    squares = ((rows[:, None] - rows[None]) ** 2).sum(2)
    np.fill_diagonal(squares, np.inf)
    scores = np.sort(squares, axis=1)[:, : len(rows) - bad - 2].sum(1)
    return rows[np.argsort(scores)[:keep]].mean(0)


def combine(rows: torch.Tensor, **fields: int | None) -> torch.Tensor:
    return MultiKrum(**fields).combine(rows, torch.ones(len(rows), dtype=rows.dtype))


@pytest.mark.parametrize("keep", [1, 2, 5, None])
@pytest.mark.parametrize("bad", [0, 1, 3])
def test_keeps_the_lowest_scores(bad: int, keep: int | None) -> None:
    rows = np.random.default_rng(bad).normal(size=(9, 20))
    wanted = chosen_mean(rows, bad, keep or 9 - bad)
    np.testing.assert_allclose(combine(torch.tensor(rows), bad=bad, keep=keep), wanted, rtol=1e-12)


def test_keeping_one_is_krum_and_trusting_all_is_the_mean() -> None:
    rows = torch.randn(7, 20)
    krum = parse("krum(bad=2)", Aggregator).combine(rows, torch.ones(7))
    torch.testing.assert_close(combine(rows, bad=2, keep=1), krum)
    torch.testing.assert_close(combine(rows, bad=0), rows.mean(0))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30, 1e3])
@pytest.mark.parametrize("bad", [1, 2, 3])
def test_by_default_all_bad_ones_are_left_out(bad: int, garbage: float) -> None:
    size = 2 * bad + 3
    honest = torch.randn(size - bad, 30, generator=torch.Generator().manual_seed(bad))
    result = combine(torch.cat([honest, torch.full((bad, 30), garbage)]), bad=bad)
    torch.testing.assert_close(result, honest.mean(0))


@pytest.mark.parametrize(("bad", "size"), [(1, 4), (2, 6), (0, 2)])
def test_too_few_workers(bad: int, size: int) -> None:
    with pytest.raises(UserError, match=rf"needs at least 2 \* bad \+ 3 = {2 * bad + 3} workers"):
        MultiKrum(bad).check(size)
    MultiKrum(bad).check(2 * bad + 3)
    MultiKrum(bad).check(1)


@pytest.mark.parametrize(("keep", "size"), [(5, 5), (8, 7)])
def test_keeping_more_than_can_be_honest(keep: int, size: int) -> None:
    """The sentence says what would work, and that does."""
    with pytest.raises(UserError, match=rf"keep \+ bad = {keep + 1} workers, or bad ones are kept") as caught:
        MultiKrum(keep=keep).check(size)
    advised = re.search(r"use (keep=\d+) or more workers$", str(caught.value))
    assert advised is not None
    parse(f"multi-krum({advised[1]})", Aggregator).check(size)
    MultiKrum(keep=keep).check(keep + 1)
    MultiKrum(keep=keep).check(1)
