"""Shares that are alike."""

from __future__ import annotations

import torch

from tutti.partitions.iid import Iid


def test_every_worker_has_about_as_many_of_each_class() -> None:
    targets = torch.arange(10_000) % 5
    for share in Iid().split(targets, 8, seed=1):
        counts = torch.bincount(targets[share])
        assert (counts - 250).abs().max() < 60, "four deviations"
