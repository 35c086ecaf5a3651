"""Replicas for tests, and what can be said of any: whose gradients lie where."""

from __future__ import annotations

import torch
from torch import nn

from tutti.replica import Replica


def replica_of(
    model: nn.Module, nbytes: int = 2**20, optimizer: torch.optim.Optimizer | None = None, first: int | None = None
) -> Replica:
    replica = Replica(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1))
    replica.make_buckets(nbytes, lambda _: None, first)
    return replica


def names_of(replica: Replica) -> list[list[str]]:
    return [[piece.name for piece in bucket.layout.slices] for bucket in replica.buckets]


def assert_in_buckets(replica: Replica) -> None:
    """Every weight is its place in a flat buffer, and so is every gradient that is there."""
    for bucket in replica.buckets:
        for piece, parameter, view in zip(bucket.layout.slices, bucket.parameters, bucket.views, strict=True):
            assert parameter.data_ptr() == piece.view(bucket.weights).data_ptr()
            if parameter.grad is not None:
                assert parameter.grad.data_ptr() == view.data_ptr() == piece.view(bucket.grads).data_ptr()
                assert parameter.grad.stride() == view.stride()
