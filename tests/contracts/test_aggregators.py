"""What every aggregator must do, and what one bad worker does to each.

A member's formula in numpy stands in its own test file, as `reference(rows, samples)`; there also `FEWEST`, how many
workers it needs (one alone always works), unless any number will do. What it makes of garbage is entered in `STANDS`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from catalogue import every
from torch import Tensor, nn
from training import joint_batch, loss_of, set_up, small_model, train
from workers import SIZES, on_threads

from tutti.aggregators.base import Aggregator
from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.spec import names, parse

SPECS = every(Aggregator)
EXACT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
ONLY_SIGNS = {"sign-vote"}  # all others leave a worker alone with what it has
BY_NEIGHBOURS = {"adasum"}  # to all others the order of the workers is the same


def own_test(aggregator: Aggregator) -> ModuleType | None:
    try:
        return importlib.import_module(f"aggregators.test_{aggregator.name.replace('-', '_')}")
    except ModuleNotFoundError:
        return None


def reference(aggregator: Aggregator) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    formula = getattr(own_test(aggregator), "reference", None)
    if formula is None:
        file = f"tests/aggregators/test_{aggregator.name.replace('-', '_')}.py"
        pytest.fail(f"'{aggregator.name}' needs {file} with reference(rows, samples) in numpy")
    return formula


def enough(spec: str, size: int) -> bool:
    return size == 1 or size >= getattr(own_test(parse(spec, Aggregator)), "FEWEST", 1)


EVERY = pytest.mark.parametrize("spec", SPECS)
EVERY_SIZE = pytest.mark.parametrize("size", SIZES)
EVERY_ENOUGH = pytest.mark.parametrize(("spec", "size"), [(s, n) for s in SPECS for n in SIZES if enough(s, n)])


def given(aggregator: Aggregator, size: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[int], Tensor]:
    """Contributions, the samples they stand for, and the weights that travel with them."""
    rows = torch.randn(size, 33, generator=torch.Generator().manual_seed(size)).to(dtype)
    samples = [(5 * rank) % 7 + 1 for rank in range(size)]
    return rows, samples, torch.tensor([aggregator.weight(s) for s in samples], dtype=dtype)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@EVERY_ENOUGH
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
@EVERY
def test_too_few_workers_are_refused(spec: str, size: int) -> None:
    """And no others are: what it needs, and what would work."""
    aggregator = parse(spec, Aggregator)
    if enough(spec, size):
        aggregator.check(size)
        return
    with pytest.raises(UserError, match=rf"^'.*' needs at least .* workers, and there are {size}; use .*more workers$"):
        aggregator.check(size)


@EVERY_SIZE
@pytest.mark.parametrize("spec", [spec for spec in SPECS if parse(spec, Aggregator).linear])
def test_linear_means_weighted_sums(spec: str, size: int) -> None:
    """What lets it run on routes where only partial sums travel."""
    aggregator = parse(spec, Aggregator)
    rows, _, weights = given(aggregator, size)
    by_sums = sum(w * row for w, row in zip(weights, rows, strict=True))
    by_sums = by_sums / weights.sum() if aggregator.normalised else by_sums
    torch.testing.assert_close(aggregator.combine(rows, weights), by_sums)


@EVERY_ENOUGH
def test_order_of_workers_does_not_matter(spec: str, size: int) -> None:
    aggregator = parse(spec, Aggregator)
    rows, _, weights = given(aggregator, size)
    turned = torch.roll(torch.arange(size).flip(0), size // 2)
    result, other = aggregator.combine(rows, weights), aggregator.combine(rows[turned], weights[turned])
    if aggregator.name in BY_NEIGHBOURS and size & (size - 1):
        assert not torch.allclose(other, result)
    else:
        torch.testing.assert_close(other, result)


@EVERY
def test_one_worker_keeps_what_it_has(spec: str) -> None:
    aggregator = parse(spec, Aggregator)
    rows, _, weights = given(aggregator, 1)
    kept = rows[0].sign() if aggregator.name in ONLY_SIGNS else rows[0]
    torch.testing.assert_close(aggregator.combine(rows, weights), kept)


@EVERY_ENOUGH
def test_nothing_to_combine(spec: str, size: int) -> None:
    aggregator = parse(spec, Aggregator)
    assert aggregator.combine(torch.empty(size, 0), torch.ones(size)).shape == (0,)


@EVERY
def test_a_part_of_a_larger_buffer(spec: str) -> None:
    """Rows that are not side by side in memory, as an exchange hands them over."""
    aggregator = parse(spec, Aggregator)
    rows, _, weights = given(aggregator, 8)
    wide = torch.cat([rows, torch.full((8, 5), math.nan, dtype=rows.dtype)], dim=1)
    torch.testing.assert_close(aggregator.combine(wide[:, :33], weights), aggregator.combine(rows, weights))


@EVERY
def test_text_reads_back(spec: str) -> None:
    assert parse(str(parse(spec, Aggregator)), Aggregator) == parse(spec, Aggregator)


# --- one worker of seven sends garbage -------------------------------------------------------------------------------

GARBAGE: dict[str, Callable[[Tensor], Tensor]] = {
    "huge": lambda row: row * 1e9,
    "nan": lambda row: torch.full_like(row, math.nan),
    "one nan": lambda row: torch.cat([torch.full_like(row[:1], math.nan), row[1:]]),
    "infinite": lambda row: torch.full_like(row, -math.inf),
    "sign-flipped": lambda row: -row,
}
ANYTHING = set(GARBAGE)
# what each member stands: the result moves no further than two honest workers differ
STANDS: dict[str, set[str]] = {
    "adasum": set(),
    "centred-clipping": ANYTHING,
    "geometric-median": ANYTHING,
    "krum": ANYTHING,
    "mean": set(),
    "median": ANYTHING,
    "multi-krum": ANYTHING,
    "sign-vote": ANYTHING,
    "sum": set(),
    "trimmed-mean": ANYTHING,
    "weighted-mean": set(),
}
WORKERS = 7


def honest_rows(dtype: torch.dtype) -> Tensor:
    """Workers who mean the same and differ a little, as gradients of large batches do."""
    generator = torch.Generator().manual_seed(0)
    meant = torch.randn(33, generator=generator).sign() * (0.5 + torch.rand(33, generator=generator))
    return (meant + 0.05 * torch.randn(WORKERS, 33, generator=generator)).to(dtype)


def test_every_aggregator_is_entered() -> None:
    assert set(STANDS) == set(names("aggregators")), "say in STANDS what one bad worker does to each"


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", STANDS)
def test_what_one_bad_worker_changes(name: str, garbage: str, dtype: torch.dtype) -> None:
    """Whichever worker it is; what a member does not stand moves it for one of them at least."""
    aggregator = parse(name, Aggregator)
    rows = honest_rows(dtype)
    weights = torch.full((WORKERS,), aggregator.weight(4), dtype=dtype)
    clean, apart = aggregator.combine(rows, weights).double(), torch.pdist(rows.double()).max()
    stood = []
    for bad in range(WORKERS):
        spoilt = rows.clone()
        spoilt[bad] = GARBAGE[garbage](rows[bad])
        moved = (aggregator.combine(spoilt, weights).double() - clean).norm()  # NaN is not within any distance
        stood.append(bool(moved <= apart))
    assert all(stood) == (garbage in STANDS[name])


@pytest.mark.parametrize("name", [name for name, stands in STANDS.items() if not stands])
def test_nan_from_one_worker_is_nan_for_all(name: str) -> None:
    """For those who stand nothing."""
    aggregator = parse(name, Aggregator)
    rows = honest_rows(torch.float32)
    rows[2] = math.nan
    assert aggregator.combine(rows, torch.ones(WORKERS)).isnan().all()


# --- and trains with it ----------------------------------------------------------------------------------------------


def plain(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def loss_after(combine: str, by: str) -> float:
    """Of all workers' batches, when five workers have trained and the second of them was bad."""

    def work(comm: Comm) -> float:
        algorithm = f"gradient-average(corrupt(all-reduce(star, {combine}), worker=1, by={by}))"
        with set_up(comm, algorithm, small_model(), plain) as run:
            train(run, range(40))
            return float(loss_of(run.replica.model, joint_batch(comm.size, 100)).detach())

    first, *others = on_threads(5, work)
    assert all(other == first or math.isnan(other) for other in others)
    return first


@pytest.mark.parametrize("by", ["huge", "nan"])
@pytest.mark.parametrize("combine", ["mean", "adasum", "median", "multi-krum", "sign-vote"])
def test_training_with_a_bad_worker(combine: str, by: str) -> None:
    """Trains as the table says, or does not."""
    before = float(loss_of(small_model(), joint_batch(5, 100)).detach())
    assert (loss_after(combine, by) < before / 2) == (by in STANDS[combine])


@pytest.mark.parametrize("combine", ["trimmed-mean", "krum", "geometric-median", "centred-clipping"])
def test_training_while_one_worker_turns_everything_round(combine: str) -> None:
    """And loudly: against the mean of five it takes away what the others learn, and much more."""
    before = float(loss_of(small_model(), joint_batch(5, 100)).detach())
    assert loss_after(combine, "huge, times=-20") < before / 2
    assert not loss_after("mean", "huge, times=-20") < before
