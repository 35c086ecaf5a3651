"""The mean of all workers' models: what a run whose workers differ is judged by, and what it leaves behind.

    mean     = (x_1 + ... + x_n) / n               trained weights and floating buffers; other buffers are worker 0's
    distance = sqrt((|x_1 - mean|^2 + ... + |x_n - mean|^2) / n)         over the trained weights
    bytes per worker 2(n-1)/n * S, of the kind "metrics": they are no part of what training sends

The model's tensors are made to point at the mean and back again, so a worker's own weights are never written to: they
are the same bits in the same memory afterwards, whatever happens in between, and whatever exchanges copies of them on
the lane. All the same the lane is drained first (`Algorithm.drain`, which waits and changes no result): some algorithms
update weights there. Where the algorithm keeps all workers equal, nothing is sent for the weights.

Batch normalisation. Where workers are equal, its running statistics are what the trait `buffers` says: worker 0's, or
averaged, after every backward, and nothing is sent for them here; only where they are `local` (`torch-ddp`) are they
averaged here. Where workers differ, each trains with statistics of its own, as its weights are its own; the consensus
has the mean of their running means and the mean of their running variances. (By how far those means lie apart, the
variance of all data together is larger.) The number of batches seen is worker 0's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.replica import Replica

_TAG = "metrics/consensus"


class Consensus:
    """The mean model of one run; everything but `refuse` is collective."""

    def __init__(self, algorithm: Algorithm, replica: Replica, comm: Comm) -> None:
        self._algorithm, self._replica, self._comm = algorithm, replica, comm
        self._own: dict[Tensor, Tensor] | None = None  # while the mean is in place: what each tensor pointed at

    @contextmanager
    def hold(self) -> Iterator[nn.Module]:
        """While this lasts, the model is the mean; within another of these it is that already."""
        if self._own is not None:
            yield self._replica.model
            return
        self._algorithm.drain()
        with torch.inference_mode(False), torch.no_grad():
            means = self._average(self._differing())
        self._own = {tensor: tensor.data for tensor in means}
        try:
            for tensor, mean in means.items():
                tensor.data = mean
            yield self._replica.model
        finally:
            own, self._own = self._own, None
            for tensor, data in own.items():
                tensor.data = data

    def distance(self) -> float:
        """Inside `hold` it takes one number; else the model is sent as well. Equal workers send nothing."""
        if self._algorithm.equal or self._comm.size == 1:
            return 0.0
        with self.hold(), torch.no_grad():
            assert self._own is not None
            squares = [_square_distance(self._own[weight], weight) for weight in _trained(self._replica)]
        total = torch.tensor([math.fsum(squares)], dtype=torch.float64)
        self._comm.all_reduce(total, tag=_TAG)
        return math.sqrt(float(total) / self._comm.size)

    def state_dict(self) -> dict[str, Any]:
        """Of the mean model, in memory of its own on the CPU: it can be loaded anywhere."""
        with self.hold() as model:
            state: dict[str, Any] = model.state_dict()  # the dictionary is new, the tensors are the model's
            for key, value in state.items():
                if isinstance(value, Tensor):
                    state[key] = value.detach().to("cpu", copy=True)
            return state

    def refuse(self, what: str) -> None:
        """Whatever is about a worker's own model has no place inside `hold`."""
        if self._own is not None:
            raise UserError(f"{what} inside run.consensus() would be of the mean model, which is put away again")

    def _differing(self) -> list[Tensor]:
        """What may not be the same on all workers."""
        equal, alone = self._algorithm.equal, self._comm.size == 1
        weights = [] if equal or alone else _trained(self._replica)
        shared = equal and self._algorithm.buffers != "local"
        return weights + ([] if shared or alone else list(self._replica.model.buffers()))

    def _average(self, tensors: list[Tensor]) -> dict[Tensor, Tensor]:
        """All of one type in one message; what cannot be averaged (counters) is worker 0's."""
        means = {}
        for same in by_type(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in same])
            if flat.is_floating_point() or flat.is_complex():
                flat = flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat
                self._comm.all_reduce(flat, tag=_TAG)
                flat /= self._comm.size
            else:
                self._comm.broadcast(flat, tag=_TAG)
            for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
                means[tensor] = torch.empty_like(tensor).copy_(part.view(tensor.shape))
        return means


def by_type(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors that can lie in one buffer, together."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def _trained(replica: Replica) -> list[Tensor]:
    """The weights that have gradients, or had when the buckets were made; also those that only the optimizer knows."""
    bucketed = {p for bucket in replica.buckets for p in bucket.parameters}
    return [
        p
        for p in dict.fromkeys([*replica.model.parameters(), *replica.optimizers.parameters])
        if p.requires_grad or p in bucketed
    ]


def _square_distance(own: Tensor, mean: Tensor) -> float:
    return float((own - mean).abs().double().square().sum())
