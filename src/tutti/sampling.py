"""Which samples a worker takes at which step: every sample once per epoch, reshuffled every epoch.

The shuffled samples are cut into `steps` global batches and each of those into one part per worker, so the global
batches do not depend on the number of workers: one worker on the global batch and eight on an eighth of it see the same
samples at the same step. All cuts are as even as can be: any two parts, of any steps and workers, differ by at most one
sample. Where every worker has samples of its own (see partitions), each shuffles and cuts its own instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from tutti.errors import UserError


class EpochSampler:
    """The share of one worker. There are ceil(samples / global_batch) steps, or fewer and larger ones where some
    worker would be left without a sample."""

    def __init__(self, samples: int, global_batch: int, workers: int, rank: int, seed: int) -> None:
        if workers > samples:
            raise UserError(f"{workers} workers cannot share {samples} samples: use at most {samples} workers")
        self.samples, self.global_batch, self.workers = samples, global_batch, workers
        self.rank, self.seed = rank, seed

    @property
    def steps(self) -> int:
        """Steps per epoch, the same on every worker."""
        return min(math.ceil(self.samples / self.global_batch), self.samples // self.workers)

    def epoch(self, number: int) -> list[torch.Tensor]:
        """The indices of this worker's samples, one tensor per step."""
        order = torch.from_numpy(np.random.default_rng((self.seed, number)).permutation(self.samples))
        return [batch.tensor_split(self.workers)[self.rank] for batch in order.tensor_split(self.steps)]

    def chances(self, number: int, count: int) -> torch.Tensor:
        """`count` random numbers from 0 to 1 for every sample of the data in this epoch, the same on every worker."""
        return _draw_chances(self.samples, self.seed, number, count)


class ShareSampler:
    """One worker's own share. All workers have as many steps: ceil(samples / global_batch), or fewer and larger ones
    where some worker would be left without a sample. A worker's batches differ by at most one sample, and the larger
    ones of different workers fall on different steps."""

    def __init__(self, shares: Sequence[torch.Tensor], global_batch: int, rank: int, seed: int) -> None:
        sizes = [len(share) for share in shares]
        self.share, self.samples, self.workers = shares[rank], sum(sizes), len(sizes)
        self.rank, self.seed = rank, seed
        self.steps = min(math.ceil(self.samples / global_batch), min(sizes))

    def epoch(self, number: int) -> list[torch.Tensor]:
        """The indices of this worker's samples, one tensor per step."""
        order = np.random.default_rng((self.seed, number, 2, self.rank)).permutation(len(self.share))
        late = self.rank * self.steps // self.workers
        ends = (np.arange(1, self.steps) * len(order) + late) // self.steps
        return [self.share[torch.from_numpy(part)] for part in np.split(order, ends)]

    def chances(self, number: int, count: int) -> torch.Tensor:
        """`count` random numbers from 0 to 1 for every sample of the data in this epoch, the same on every worker."""
        return _draw_chances(self.samples, self.seed, number, count)


def _draw_chances(samples: int, seed: int, number: int, count: int) -> torch.Tensor:
    drawn = np.random.default_rng((seed, number, 1)).random((samples, count), dtype=np.float32)
    return torch.from_numpy(drawn)
