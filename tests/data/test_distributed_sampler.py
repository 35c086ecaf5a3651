"""torch's sampler, which finds out by itself how many workers there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler as TorchsSampler
from training import set_up
from workers import on_threads

from tutti.comm.base import Comm
from tutti.data import DistributedSampler
from tutti.errors import UserError

DATASET = TensorDataset(torch.arange(103))


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("given", [{}, {"shuffle": False}, {"seed": 3}, {"drop_last": True}])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_it_is_torchs_own(workers: int, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(workers))
    for rank in range(workers):
        monkeypatch.setenv("RANK", str(rank))
        ours, torchs = DistributedSampler(DATASET, **given), TorchsSampler(DATASET, workers, rank, **given)
        assert isinstance(ours, TorchsSampler)
        for epoch in (0, 4):
            for sampler in (ours, torchs):
                sampler.set_epoch(epoch)
            assert list(ours) == list(torchs)
            assert len(ours) == len(torchs)


def test_a_run_says_who_it_is() -> None:
    def work(comm: Comm) -> list[int]:
        with set_up(comm) as run:
            loader = DataLoader(DATASET, batch_size=8, sampler=DistributedSampler(DATASET, run=run, drop_last=True))
            return [index for (batch,) in loader for index in batch.tolist()]

    found = [index for part in on_threads(3, work) for index in part]
    assert len(set(found)) == len(found) == 102


def test_alone_it_has_all() -> None:
    assert sorted(DistributedSampler(DATASET)) == list(range(103))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"num_replicas": 3}, r"^DistributedSampler needs num_replicas= and rank="),
        ({"num_replicas": 3, "rank": 3}, "^there is no rank 3 among 3 workers"),
        ({"num_replicas": 0, "rank": 0}, "^num_replicas must be at least 1, not 0"),
        ({"rank": 0, "run": object()}, "^DistributedSampler takes run=, or num_replicas= and rank=, not both"),
    ],
)
def test_mistakes_get_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        DistributedSampler(DATASET, **given)
