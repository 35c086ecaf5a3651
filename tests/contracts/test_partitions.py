"""What every partition found in the folder must do, over many numbers of samples, classes and workers."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from catalogue import every
from torch import Tensor
from workers import SIZES

from tutti.errors import UserError
from tutti.partitions.base import Partition
from tutti.spec import names, parse

SPECS = [
    *every(Partition),
    "dirichlet(0.01)",
    "dirichlet(100)",
    "by-class(1)",
    "by-class(5)",
    "quantity-skew(0.01, least=0)",
]
EVERY = pytest.mark.parametrize("spec", SPECS)
TARGETS: dict[str, Tensor] = {
    "ten classes": torch.arange(1437) % 10,
    "uneven classes": torch.cat([torch.full((count,), label) for label, count in enumerate((500, 90, 9, 2))]),
    "one class": torch.zeros(100, dtype=torch.int64),
    "labels with gaps": torch.tensor([3, -1, 900, 3, 3, 900, -1] * 20),
    "hardly enough": torch.arange(40) % 3,
}
CASES = pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
WORKERS = pytest.mark.parametrize("workers", [*SIZES, 4])


def split(spec: str, targets: Tensor, workers: int, seed: int = 0) -> list[list[int]]:
    return [share.tolist() for share in parse(spec, Partition).split(targets, workers, seed)]


@EVERY
def test_its_text_parses_back_and_says_every_parameter(spec: str) -> None:
    partition = parse(spec, Partition)
    assert partition.name in names("partitions")
    assert parse(str(partition), Partition) == partition
    assert str(parse(partition.name, Partition)).count(",") == max(0, len(fields(partition)) - 1)


@WORKERS
@CASES
@EVERY
def test_every_sample_has_one_owner_and_every_worker_a_sample(spec: str, targets: Tensor, workers: int) -> None:
    shares = split(spec, targets, workers)
    assert len(shares) == workers
    assert sorted(index for share in shares for index in share) == list(range(len(targets)))
    assert all(share == sorted(share) for share in shares)
    sizes = [len(share) for share in shares]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1 or not parse(spec, Partition).even


@EVERY
def test_the_seed_decides_and_nothing_else(spec: str) -> None:
    targets = TARGETS["ten classes"]
    torch.manual_seed(0)
    np.random.seed(0)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    shares = [split(spec, targets, 5, seed) for seed in (0, 0, 1)]
    assert shares[0] == shares[1] != shares[2]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]


@EVERY
def test_indices_select_rows(spec: str) -> None:
    for share in parse(spec, Partition).split(TARGETS["ten classes"], 3, 0):
        assert share.dtype == torch.int64
        assert TARGETS["ten classes"][share].shape == share.shape


@EVERY
def test_labels_may_be_any_numbers(spec: str) -> None:
    """The same shares whatever the classes are called, as long as their order is the same."""
    targets = TARGETS["ten classes"]
    assert split(spec, targets, 4) == split(spec, 7 * targets - 20, 4) == split(spec, targets.to(torch.uint8), 4)


@EVERY
def test_one_worker_has_everything(spec: str) -> None:
    assert split(spec, TARGETS["hardly enough"], 1) == [list(range(40))]


@EVERY
def test_more_workers_than_samples_are_refused(spec: str) -> None:
    with pytest.raises(UserError, match=r"^8 workers cannot share 7 samples: use at most 7 workers$"):
        split(spec, torch.arange(7), 8)


@EVERY
def test_as_many_workers_as_samples_get_one_each_or_are_refused_in_a_sentence(spec: str) -> None:
    targets, shards = torch.arange(8) % 3, getattr(parse(spec, Partition), "shards", 1)
    if shards == 1:
        assert all(len(share) == 1 for share in split(spec, targets, 8))
    else:
        with pytest.raises(UserError, match=r"^.*; use shards=1 at most$"):
            split(spec, targets, 8)
