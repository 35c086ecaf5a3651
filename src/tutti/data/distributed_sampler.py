"""torch's DistributedSampler, which knows by itself how many workers there are and which this one is.

    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)

The arguments, and which samples a worker gets, are torch's: where the samples do not divide by the number of workers
some are repeated, or with `drop_last` left out. tutti.EpochSampler does neither, and can be saved in mid-epoch.
"""

from __future__ import annotations

from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler as TorchsSampler

from tutti.data.place import HasRank, find_share


class DistributedSampler(TorchsSampler[int]):
    """The number of workers and the rank are what is given, those of `run`, or those of the process group, the launcher
    or the thread; no process group is needed. Without any of these the worker is the only one."""

    def __init__(
        self,
        dataset: Dataset[object],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        run: HasRank | None = None,
    ) -> None:
        rank, workers = find_share("DistributedSampler", num_replicas, rank, run, alone=True, name="num_replicas")
        super().__init__(dataset, workers, rank, shuffle, seed, drop_last)
