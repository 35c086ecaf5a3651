"""Everything through one worker."""

from __future__ import annotations

import pytest
import torch
from workers import SIZES, on_threads

from tutti.collectives.star import Star
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered
from tutti.comm.threads import World
from tutti.errors import UserError


def run(comm: Comm, route: Star) -> tuple[float, Meter]:
    counted = metered(comm)
    buffer = torch.full((10,), comm.rank + 1.0)
    route.prepare(counted)
    route.run(counted, buffer, "gradients/0")
    return buffer.sum().item(), counted.meter


@pytest.mark.parametrize("size", SIZES[1:])
def test_any_worker_may_be_the_root(size: int) -> None:
    for root in range(size):
        results = on_threads(size, lambda comm, root=root: run(comm, Star(root)))
        assert [total for total, _ in results] == [10 * size * (size + 1) / 2] * size
        for rank, (_, meter) in enumerate(results):
            peers = {peer for _, peer in meter.tallies}
            assert peers == (set(range(size)) - {root} if rank == root else {root})


def test_root_carries_everything_both_ways() -> None:
    _, meter = on_threads(5, lambda comm: run(comm, Star(3)))[3]
    assert sum(tally.sent for tally in meter.tallies.values()) == Star(3).cost(5, 40).busiest
    assert sum(tally.received for tally in meter.tallies.values()) == Star(3).cost(5, 40).busiest


@pytest.mark.parametrize("operation", ["reduce", "broadcast", "gather", "scatter"])
def test_operations_with_a_root_go_straight_to_it(operation: str) -> None:
    """Whatever the star's own root is."""

    def work(comm: Comm) -> set[int]:
        counted = metered(comm)
        getattr(Star(root=3), operation)(counted, torch.zeros(10), "gradients/0", root=1)
        return {peer for _, peer in counted.meter.tallies}

    assert on_threads(5, work) == [{1}, {0, 2, 3, 4}, {1}, {1}, {1}]


def test_two_rounds() -> None:
    """A worker's one message out, and one back."""
    for rank, (_, meter) in enumerate(on_threads(5, lambda comm: run(comm, Star()))):
        assert [tally.messages for tally in meter.tallies.values()] == ([1] * 4 if rank == 0 else [1])
    assert Star().cost(5, 40).rounds == 2


def test_root_must_be_a_worker() -> None:
    with pytest.raises(UserError, match=r"root of 'star' must be below the number of workers \(3\), not 3"):
        Star(root=3).prepare(World(3).comm(0))
