"""Everything to everybody at once."""

from __future__ import annotations

import pytest
import torch
from workers import SIZES, on_threads

from tutti.collectives.all_gather import AllGather
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered


@pytest.mark.parametrize("size", SIZES)
def test_one_round(size: int) -> None:
    """One message to every other worker; none waits for another."""

    def work(comm: Comm) -> Meter:
        counted = metered(comm)
        AllGather().run(counted, torch.zeros(10), "gradients/0")
        return counted.meter

    for meter in on_threads(size, work):
        assert [tally.messages for tally in meter.tallies.values()] == [1] * (size - 1)
    assert AllGather().cost(size, 40).rounds == (1 if size > 1 else 0)


def test_pieces_only_where_they_are_all_there_is_to_gather() -> None:
    def work(comm: Comm) -> float:
        counted = metered(comm)
        AllGather().all_gather(counted, torch.zeros(12), "gradients/0")
        return counted.meter.sent()

    assert on_threads(3, work) == [2 * 16.0] * 3
