"""What the tests of samplers run on launched workers: importable, so that processes can find it."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from training import set_up

from tutti.comm.base import Comm
from tutti.data import DirichletSampler, DistributedSampler
from tutti.launch import Report
from tutti.sampling import EpochSampler

SAMPLES, BATCH = 53, 10


def draw_with_every_sampler(comm: Comm, _: Report, loader_workers: int) -> list[dict[str, Any]]:
    """No worker is given its rank; all workers' samples of an epoch, by sampler."""
    dataset = TensorDataset(torch.arange(SAMPLES))
    with set_up(comm) as run:
        by_batch = {"launched": EpochSampler(dataset, BATCH), "of the run": EpochSampler(dataset, BATCH, run=run)}
    by_sample = {
        "torch": DistributedSampler(dataset, drop_last=True),
        "dirichlet": DirichletSampler(torch.arange(SAMPLES) % 5, 0.1),
    }
    # launched workers would start those of a loader by a server that has to import torch first
    options: dict[str, Any] = (
        {"num_workers": loader_workers, "multiprocessing_context": "fork"} if loader_workers else {}
    )
    loaders = {name: DataLoader(dataset, batch_sampler=sampler, **options) for name, sampler in by_batch.items()}
    loaders |= {name: DataLoader(dataset, 4, sampler=sampler) for name, sampler in by_sample.items()}
    drawn = {name: [batch.tolist() for (batch,) in loader] for name, loader in loaders.items()}
    return [json.loads(row) for row in comm.gather_bytes(json.dumps(drawn).encode())]
