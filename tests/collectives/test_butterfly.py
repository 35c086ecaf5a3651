"""Who swaps with whom, and that all end with the same bits."""

from __future__ import annotations

import pytest
import torch
from workers import on_threads

from tutti.collectives.butterfly import Butterfly, find_partners
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered


def test_partners_of_a_power_of_two() -> None:
    assert [find_partners(rank, 4) for rank in range(4)] == [
        (None, None, (1, 2)),
        (None, None, (0, 3)),
        (None, None, (3, 0)),
        (None, None, (2, 1)),
    ]


def test_those_beyond_have_a_helper() -> None:
    assert find_partners(5, 6) == (1, None, ())
    assert find_partners(1, 6) == (None, 5, (0, 3))
    assert find_partners(3, 6) == (None, None, (2, 1))


@pytest.mark.parametrize("size", range(1, 17))
def test_partners_agree(size: int) -> None:
    found = [find_partners(rank, size) for rank in range(size)]
    for rank, (helper, helped, partners) in enumerate(found):
        assert all(found[partner][2][k] == rank for k, partner in enumerate(partners))
        assert helped is None or found[helped][0] == rank
        assert helper is None or found[helper][1] == rank


@pytest.mark.parametrize(("size", "messages"), [(2, [1, 1]), (4, [2] * 4), (5, [3, 2, 2, 2, 1]), (8, [3] * 8)])
def test_a_message_in_every_round(size: int, messages: list[int]) -> None:
    def work(comm: Comm) -> Meter:
        counted = metered(comm)
        Butterfly().run(counted, torch.zeros(10), "gradients/0")
        return counted.meter

    meters = on_threads(size, work)
    assert [sum(tally.messages for tally in meter.tallies.values()) for meter in meters] == messages


@pytest.mark.parametrize("size", range(2, 17))
def test_the_same_bits_where_the_order_matters(size: int) -> None:
    """Numbers of such different sizes that another order of adding gives another sum."""
    rows = torch.randn(size, 500, generator=torch.Generator().manual_seed(size)) * 10.0 ** (torch.arange(500) % 9)

    def work(comm: Comm) -> bytes:
        buffer = rows[comm.rank].clone()
        Butterfly().run(comm, buffer, "gradients/0")
        return buffer.numpy().tobytes()

    assert len(set(on_threads(size, work))) == 1
