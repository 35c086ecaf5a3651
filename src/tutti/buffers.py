"""The model's buffers, such as running statistics, made the same on all workers after a backward.

    broadcast    everything is that of the first worker that trains
    average      floating buffers are the mean over the workers that train, others the first one's

All buffers of one type travel in one message. Who trains: every worker, or fewer inside `run.join()`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tutti.comm.base import Comm
from tutti.consensus import by_type


def agree_on_buffers(model: nn.Module, comm: Comm, how: str, training: Sequence[int]) -> None:
    for same in by_type(model.buffers()):
        flat = torch.cat([buffer.reshape(-1) for buffer in same])
        if how == "broadcast" or not flat.is_floating_point():
            comm.broadcast(flat, training[0], tag="buffers/broadcast")
        else:
            if comm.rank not in training:
                flat.zero_()
            comm.all_reduce(flat, tag="buffers/average")
            flat /= len(training)
        for buffer, part in zip(same, flat.split([b.numel() for b in same]), strict=True):
            # by .data: a graph whose backward comes later may hold them (a GAN), and batch normalisation in training
            # saves its statistics without reading them
            buffer.data.copy_(part.view(buffer.shape))
