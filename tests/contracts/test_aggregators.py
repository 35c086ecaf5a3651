"""What every aggregator must do. Its formula in numpy stands in its own test file, as `reference(rows, samples)`."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from catalogue import every
from torch import Tensor
from workers import SIZES

from tutti.aggregators.base import Aggregator
from tutti.spec import parse

SPECS = every(Aggregator)
EVERY = pytest.mark.parametrize("spec", SPECS)
EVERY_SIZE = pytest.mark.parametrize("size", SIZES)
EXACT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def reference(aggregator: Aggregator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    name = f"aggregators.test_{aggregator.name.replace('-', '_')}"
    try:
        return importlib.import_module(name).reference
    except (ModuleNotFoundError, AttributeError):
        pytest.fail(
            f"'{aggregator.name}' needs tests/{name.replace('.', '/')}.py with reference(rows, samples) in numpy"
        )


def given(aggregator: Aggregator, size: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[int], Tensor]:
    """Contributions, the samples they stand for, and the weights that travel with them."""
    rows = torch.randn(size, 33, generator=torch.Generator().manual_seed(size)).to(dtype)
    samples = [(5 * rank) % 7 + 1 for rank in range(size)]
    return rows, samples, torch.tensor([aggregator.weight(s) for s in samples], dtype=dtype)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@EVERY_SIZE
@EVERY
def test_equals_its_formula(spec: str, size: int, dtype: torch.dtype) -> None:
    aggregator = parse(spec, Aggregator)
    rows, samples, weights = given(aggregator, size, dtype)
    before = rows.clone(), weights.clone()
    result = aggregator.combine(rows, weights)
    assert (result.dtype, result.shape) == (dtype, (33,))
    wanted = reference(aggregator)(rows.double().numpy(), np.array(samples, dtype=np.float64))
    scale = rows.double().abs().sum(0).numpy() + 1
    assert (np.abs(result.double().numpy() - wanted) <= EXACT[dtype] * scale).all()
    assert rows.equal(before[0]), "the contributions were changed"
    assert weights.equal(before[1]), "the weights were changed"


@EVERY_SIZE
@pytest.mark.parametrize("spec", [spec for spec in SPECS if parse(spec, Aggregator).linear])
def test_linear_means_weighted_sums(spec: str, size: int) -> None:
    """What lets it run on routes where only partial sums travel."""
    aggregator = parse(spec, Aggregator)
    rows, _, weights = given(aggregator, size)
    by_sums = sum(w * row for w, row in zip(weights, rows, strict=True))
    by_sums = by_sums / weights.sum() if aggregator.normalised else by_sums
    torch.testing.assert_close(aggregator.combine(rows, weights), by_sums)


@EVERY_SIZE
@EVERY
def test_order_of_workers_does_not_matter(spec: str, size: int) -> None:
    aggregator = parse(spec, Aggregator)
    rows, _, weights = given(aggregator, size)
    turned = torch.roll(torch.arange(size).flip(0), size // 2)
    torch.testing.assert_close(aggregator.combine(rows[turned], weights[turned]), aggregator.combine(rows, weights))


@EVERY
def test_one_worker_keeps_what_it_has(spec: str) -> None:
    aggregator = parse(spec, Aggregator)
    rows, _, weights = given(aggregator, 1)
    torch.testing.assert_close(aggregator.combine(rows, weights), rows[0])


@EVERY_SIZE
@EVERY
def test_nothing_to_combine(spec: str, size: int) -> None:
    aggregator = parse(spec, Aggregator)
    assert aggregator.combine(torch.empty(size, 0), torch.ones(size)).shape == (0,)


@EVERY
def test_text_reads_back(spec: str) -> None:
    assert parse(str(parse(spec, Aggregator)), Aggregator) == parse(spec, Aggregator)
