"""Who sends what: only sums of whole buffers, one worker after another."""

from __future__ import annotations

import pytest
import torch
from workers import on_threads

from tutti.collectives.ring_reduce import RingReduce
from tutti.comm.base import Comm
from tutti.comm.metered import metered


@pytest.mark.parametrize("size", [2, 3, 5])
def test_worker_0_sends_once_and_the_last_too(size: int) -> None:
    def work(comm: Comm) -> tuple[float, dict[int, float], list[float]]:
        counted = metered(comm)
        buffer = torch.arange(3.0) * (comm.rank + 1)
        RingReduce().run(counted, buffer, "gradients/0")
        peers = {peer: tally.sent for (_, peer), tally in counted.meter.tallies.items() if tally.sent}
        return counted.meter.sent(), peers, buffer.tolist()

    total = size * (size + 1) / 2
    for rank, (sent, peers, result) in enumerate(on_threads(size, work)):
        assert sent == 12 * (1 if rank in (0, size - 1) else 2)
        assert set(peers) == {(rank + 1) % size}, "everybody speaks only to the right"
        assert result == [0.0, total, 2 * total]
