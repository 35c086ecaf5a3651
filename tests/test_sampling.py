"""The rules of the sampler, over many numbers of samples, batch sizes and workers."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from tutti.errors import UserError
from tutti.sampling import EpochSampler, ShareSampler

WORKERS = (1, 2, 3, 5, 8)
CASES = [
    case
    for case in product((1, 2, 7, 8, 16, 63, 64, 65, 100, 1437), (1, 3, 8, 10, 64, 2000), WORKERS)
    if case[0] >= case[2]
]


def epoch_of_all(samples: int, batch: int, workers: int, number: int = 0, seed: int = 0) -> list[list[list[int]]]:
    """What every worker takes, by worker and step."""
    samplers = [EpochSampler(samples, batch, workers, rank, seed) for rank in range(workers)]
    return [[indices.tolist() for indices in sampler.epoch(number)] for sampler in samplers]


def global_batches(epoch: list[list[list[int]]]) -> list[list[int]]:
    return [sorted(index for part in parts for index in part) for parts in zip(*epoch, strict=True)]


@pytest.mark.parametrize(("samples", "batch", "workers"), CASES)
def test_every_sample_once_in_parts_of_even_size(samples: int, batch: int, workers: int) -> None:
    epoch = epoch_of_all(samples, batch, workers)
    steps = EpochSampler(samples, batch, workers, 0, 0).steps
    assert [len(parts) for parts in epoch] == [steps] * workers
    sizes = [len(part) for parts in epoch for part in parts]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert sorted(index for parts in epoch for part in parts for index in part) == list(range(samples))


@pytest.mark.parametrize(("samples", "batch", "workers"), CASES)
def test_as_many_steps_as_batches_unless_a_worker_would_have_none(samples: int, batch: int, workers: int) -> None:
    steps = EpochSampler(samples, batch, workers, 0, 0).steps
    wanted = math.ceil(samples / batch)
    assert steps == wanted or (steps < wanted and samples // (steps + 1) < workers)


@pytest.mark.parametrize(("samples", "batch"), [(64, 8), (100, 10), (1437, 64), (1437, 100), (50, 2000)])
def test_global_batches_are_the_same_for_any_number_of_workers(samples: int, batch: int) -> None:
    alone = global_batches(epoch_of_all(samples, batch, 1, number=3, seed=7))
    assert max(map(len, alone)) <= batch
    for workers in WORKERS:
        assert global_batches(epoch_of_all(samples, batch, workers, number=3, seed=7)) == alone


def test_epochs_and_seeds_are_shuffled_differently_and_repeatably() -> None:
    epochs = {
        tuple(torch.cat(EpochSampler(100, 10, 1, 0, seed).epoch(number)).tolist())
        for seed, number in product(range(5), range(5))
    }
    assert len(epochs) == 25
    assert epoch_of_all(100, 10, 3, number=4, seed=2) == epoch_of_all(100, 10, 3, number=4, seed=2)


def test_shuffling_leaves_torch_s_random_state_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    EpochSampler(100, 10, 2, 1, 0).epoch(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_indices_select_rows() -> None:
    indices = EpochSampler(10, 5, 2, 1, 0).epoch(0)[0]
    assert indices.dtype == torch.int64
    assert torch.arange(10)[indices].tolist() == indices.tolist()


def test_more_workers_than_samples_are_refused() -> None:
    with pytest.raises(UserError, match="8 workers cannot share 7 samples: use at most 7 workers"):
        EpochSampler(7, 64, 8, 0, 0)


def test_chances_depend_on_seed_epoch_and_sample_alone() -> None:
    alone = EpochSampler(50, 8, workers=1, rank=0, seed=3)
    among = EpochSampler(50, 16, workers=4, rank=2, seed=3)
    assert alone.chances(1, 3).shape == (50, 3)
    assert torch.equal(alone.chances(1, 3), among.chances(1, 3))
    assert not torch.equal(alone.chances(1, 3), alone.chances(2, 3))
    assert not torch.equal(alone.chances(1, 3), EpochSampler(50, 8, 1, 0, seed=4).chances(1, 3))
    assert alone.chances(1, 3).min() >= 0
    assert alone.chances(1, 3).max() < 1
    assert alone.chances(1, 0).shape == (50, 0)


# --- shares of their own ---------------------------------------------------------------------------------------------

SHARES = {
    "equal": [30, 30, 30, 30],
    "nearly equal": [180, 180, 180, 180, 180, 179, 179, 179],
    "very different": [867, 85, 40, 27, 168, 17, 161, 72],
    "one sample": [1, 50],
    "one worker": [65],
}
EACH = pytest.mark.parametrize("sizes", SHARES.values(), ids=SHARES)


def share_out(sizes: list[int], batch: int, seed: int = 0) -> list[ShareSampler]:
    shares = [part.sort().values for part in torch.randperm(sum(sizes), generator=fixed()).split(sizes)]
    return [ShareSampler(shares, batch, rank, seed) for rank in range(len(sizes))]


def fixed() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("batch", [1, 10, 64, 2000])
@EACH
def test_every_worker_takes_its_own_samples_once_in_even_batches(sizes: list[int], batch: int) -> None:
    samplers = share_out(sizes, batch)
    steps = min(math.ceil(sum(sizes) / batch), min(sizes))
    for sampler in samplers:
        parts = sampler.epoch(3)
        assert len(parts) == sampler.steps == steps
        assert sorted(torch.cat(parts).tolist()) == sampler.share.tolist()
        lengths = [len(part) for part in parts]
        assert min(lengths) >= 1
        assert max(lengths) - min(lengths) <= 1


def test_larger_batches_fall_on_different_steps() -> None:
    """Seven and a half samples per worker and step: the batches of all are even too."""
    parts = [sampler.epoch(1) for sampler in share_out([30] * 8, 60)]
    assert [sum(map(len, step)) for step in zip(*parts, strict=True)] == [60] * 4


def test_an_epoch_is_shuffled_by_seed_number_and_worker() -> None:
    def order(rank: int, seed: int, number: int) -> list[int]:
        shares = [torch.arange(50), torch.arange(50)]
        return torch.cat(ShareSampler(shares, 10, rank, seed).epoch(number)).tolist()

    orders = {tuple(order(rank, seed, number)) for rank, seed, number in product((0, 1), range(3), range(3))}
    assert len(orders) == 18
    assert order(1, 2, 3) == order(1, 2, 3)


def test_chances_are_the_samples_whoever_they_belong_to() -> None:
    (first, *_), whole = share_out([30, 20], 10, seed=3), EpochSampler(50, 8, workers=1, rank=0, seed=3)
    assert torch.equal(first.chances(2, 3), whole.chances(2, 3))
