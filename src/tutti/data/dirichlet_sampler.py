"""Data that differs from worker to worker, for any training loop: a sampler for torch's DataLoader.

    sampler = DirichletSampler(labels, alpha=0.1)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)

It stands where torch's DistributedSampler stands. Every sample belongs to one worker; the smaller alpha, the fewer
classes a worker has (tutti/partitions/dirichlet.py says how).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from tutti.data.place import HasRank, find_share
from tutti.errors import UserError
from tutti.partitions.base import Partition
from tutti.spec import parse


class DirichletSampler(Sampler[int]):
    """The samples of one worker; in another order in every epoch, if `set_epoch` is called before it.

    How many workers there are and which this one is: `workers` and `rank`, those of `run`, or those of the process
    group, the launcher or the thread. Shares differ by at most one sample; with `drop_last` whoever has one more leaves
    one out, another in every epoch, so that all have as many.
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int] | np.ndarray,
        alpha: float,
        *,
        workers: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        run: HasRank | None = None,
    ) -> None:
        partition = _read_alpha(alpha)
        rank, workers = find_share("DirichletSampler", workers, rank, run, alone=False)
        self.rank, self.seed, self.shuffle = rank, seed, shuffle
        targets = _read_labels(labels)
        self.share = partition.split(targets, workers, seed)[rank]
        self._length = len(targets) // workers if drop_last else len(self.share)
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Call it before every epoch, or all are in the same order."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = np.arange(len(self.share))
        if self.shuffle:
            order = np.random.default_rng((self.seed, self._epoch, 2, self.rank)).permutation(order)
        return iter(self.share[torch.from_numpy(order[: self._length])].tolist())

    def __len__(self) -> int:
        return self._length


def _read_alpha(alpha: float) -> Partition:
    try:
        return parse(f"dirichlet({alpha})", Partition)
    except UserError as error:
        raise UserError(str(error).splitlines()[0]) from None  # without the spec, which nobody wrote


def _read_labels(labels: Tensor | Sequence[int] | np.ndarray) -> Tensor:
    try:
        targets = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        targets = torch.empty(())
    if targets.dim() != 1 or (len(targets) and (targets.is_floating_point() or targets.is_complex())):
        raise UserError(
            "DirichletSampler takes the class of every sample: a sequence of integers, or a tensor or array of them"
        )
    if not len(targets):
        raise UserError("DirichletSampler has no labels: there is nothing to share out")
    return targets
