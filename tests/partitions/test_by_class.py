"""Shards of sorted samples: few classes each, and a sentence where there are too many shards."""

from __future__ import annotations

import pytest
import torch

from tutti.errors import UserError
from tutti.partitions.by_class import ByClass


def classes_of(shards: int, targets: torch.Tensor, workers: int) -> list[int]:
    return [len(targets[share].unique()) for share in ByClass(shards).split(targets, workers, seed=0)]


def test_shards_that_lie_within_a_class_give_as_many_classes() -> None:
    targets = torch.arange(1000) % 10
    assert max(classes_of(2, targets, 5)) <= 2
    assert max(classes_of(1, targets, 10)) == 1
    assert max(classes_of(2, targets, 50)) <= 2


def test_a_shard_may_lie_in_two_classes_where_they_meet() -> None:
    assert max(classes_of(2, torch.arange(1437) % 10, 8)) <= 4


def test_shards_go_to_others_for_another_seed_and_shares_stay_equal() -> None:
    targets = torch.arange(1437) % 10
    for seed in range(10):
        sizes = [len(share) for share in ByClass(7).split(targets, 11, seed)]
        assert max(sizes) - min(sizes) <= 1


def test_too_many_shards_are_refused() -> None:
    targets = torch.arange(100) % 10
    with pytest.raises(
        UserError, match=r"^'by-class\(26\)' cuts 4 \* 26 shards, and there are 100 samples; use shards=25"
    ):
        ByClass(26).split(targets, 4, 0)
    assert [len(share) for share in ByClass(25).split(targets, 4, 0)] == [25] * 4
