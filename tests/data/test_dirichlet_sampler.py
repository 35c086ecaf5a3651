"""The public sampler: in a plain DataLoader, without the rest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tutti.data import DirichletSampler
from tutti.errors import UserError
from tutti.partitions.dirichlet import Dirichlet

LABELS = torch.arange(103) % 10


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def make(rank: int, workers: int = 4, **options: object) -> DirichletSampler:
    return DirichletSampler(LABELS, 0.1, workers=workers, rank=rank, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_every_sample_once_per_epoch_in_a_plain_loader(workers: int) -> None:
    dataset = TensorDataset(torch.arange(103))
    for epoch in (0, 1):
        seen: list[int] = []
        for rank in range(workers):
            sampler = make(rank, workers)
            sampler.set_epoch(epoch)
            loader = DataLoader(dataset, batch_size=8, sampler=sampler)
            mine = [int(index) for (batch,) in loader for index in batch]
            assert len(mine) == len(sampler)
            seen += mine
        assert sorted(seen) == list(range(103))


def test_it_has_the_shares_of_the_partition() -> None:
    shares = Dirichlet(0.1).split(LABELS, 4, seed=3)
    for rank, share in enumerate(shares):
        assert sorted(make(rank, seed=3)) == share.tolist()


def test_every_epoch_has_an_order_of_its_own_that_can_be_repeated() -> None:
    sampler = make(1)
    first = list(sampler)
    assert list(sampler) == first, "the same epoch"
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert sorted(sampler) == sorted(first)
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_without_shuffling_the_order_is_that_of_the_data() -> None:
    sampler = make(2, shuffle=False)
    sampler.set_epoch(5)
    assert list(sampler) == sampler.share.tolist()


def test_shares_differ_by_one_and_not_at_all_where_the_last_is_dropped() -> None:
    assert sorted(len(make(rank)) for rank in range(4)) == [25, 26, 26, 26]
    assert [len(make(rank, drop_last=True)) for rank in range(4)] == [25] * 4
    longest = next(make(rank, drop_last=True) for rank in range(4) if len(make(rank)) == 26)
    left_out = set()
    for epoch in range(10):
        longest.set_epoch(epoch)
        assert len(list(longest)) == 25
        left_out |= set(longest.share.tolist()) - set(longest)
    assert len(left_out) > 3, "another one in every epoch"


@pytest.mark.parametrize("labels", [LABELS.tolist(), LABELS.numpy(), LABELS.numpy().astype(np.uint8)])
def test_labels_may_be_a_list_or_an_array(labels: list[int]) -> None:
    assert list(DirichletSampler(labels, 0.1, workers=4, rank=0)) == list(make(0))


# --- who am I --------------------------------------------------------------------------------------------------------


def test_the_launcher_says_which_worker_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert list(DirichletSampler(LABELS, 0.1)) == list(make(2))
    assert list(DirichletSampler(LABELS, 0.1, rank=1)) == list(make(1)), "what is given counts"


@pytest.mark.usefixtures("group")
def test_a_process_group_counts_before_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert len(DirichletSampler(LABELS, 0.1)) == 103


@pytest.mark.parametrize("given", [{}, {"rank": 0}, {"workers": 4}])
def test_where_nobody_says_it_has_to_be_told(given: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"^DirichletSampler needs workers= and rank=: "):
        DirichletSampler(LABELS, 0.1, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rank": 4}, "there is no rank 4 among 4 workers: ranks go from 0 to 3"),
        ({"rank": -1}, "there is no rank -1 among 4 workers"),
        ({"workers": 104}, "104 workers cannot share 103 samples"),
        ({"alpha": 0}, "^alpha of 'dirichlet' must be between 0.0001 and 1000000, not 0$"),
        ({"alpha": float("nan")}, "^alpha of 'dirichlet' takes a number such as 0.1, not 'nan'$"),
        ({"workers": 0}, "^workers must be at least 1, not 0"),
        ({"labels": []}, "^DirichletSampler has no labels"),
        ({"labels": torch.rand(10)}, "^DirichletSampler takes the class of every sample: a sequence of integers"),
        ({"labels": ["cat", "dog"]}, "^DirichletSampler takes the class of every sample: a sequence of integers"),
        ({"labels": None}, "^DirichletSampler takes the class of every sample: a sequence of integers"),
        ({"labels": 5}, "^DirichletSampler takes the class of every sample: a sequence of integers"),
    ],
)
def test_mistakes_get_a_sentence(given: dict[str, object], sentence: str) -> None:
    options = {"labels": LABELS, "alpha": 0.1, "workers": 4, "rank": 0, **given}
    with pytest.raises(UserError, match=sentence):
        DirichletSampler(**options)  # type: ignore[arg-type]


def test_the_room_is_entered_without_torch() -> None:
    for room in ("import sys, tutti.data", "import sys, tutti; tutti.data"):
        script = f"{room}; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
        subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        __import__("tutti.data").data.Nothing  # noqa: B018
