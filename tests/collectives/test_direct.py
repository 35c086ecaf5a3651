"""Everybody with everybody: how many messages, and what the root carries."""

from __future__ import annotations

import pytest
import torch
from workers import SIZES, on_threads

from tutti.collectives.base import OPERATIONS
from tutti.collectives.direct import Direct
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered
from tutti.errors import UserError


def meters_of(operation: str, size: int) -> list[Meter]:
    def work(comm: Comm) -> Meter:
        counted = metered(comm)
        Direct().perform(operation, counted, torch.zeros(120), "gradients/0")
        return counted.meter

    return on_threads(size, work)


def test_every_operation_there_is() -> None:
    assert Direct().operations == OPERATIONS


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("operation", "rounds"), [("all-reduce", 2), ("reduce-scatter", 1), ("all-gather", 1), ("all-to-all", 1)]
)
def test_one_message_to_everybody_in_every_round(operation: str, rounds: int, size: int) -> None:
    for meter in meters_of(operation, size):
        assert [tally.messages for tally in meter.tallies.values()] == [rounds] * (size - 1)


@pytest.mark.parametrize("operation", ["reduce", "broadcast"])
def test_the_roots_link_carries_less_than_twice_the_buffer(operation: str) -> None:
    """A star's would carry it four times."""
    meter = meters_of(operation, 5)[0]
    sent = meter.sent()
    received = sum(tally.received for tally in meter.tallies.values())
    assert max(sent, received) == 2 * 4 / 5 * 480


def test_sums_are_added_in_the_order_of_the_workers() -> None:
    """1 + 1e8 - 1e8 is 0 in float32, in any other order 1."""

    def work(comm: Comm) -> list[float]:
        buffer = torch.full((3,), [1.0, 1e8, -1e8][comm.rank])
        Direct().run(comm, buffer, "gradients/0")
        return buffer.tolist()

    assert on_threads(3, work) == [[0.0] * 3] * 3


def test_all_to_all_needs_equal_pieces() -> None:
    def work(comm: Comm) -> None:
        Direct().all_to_all(comm, torch.zeros(7), "gradients/0")

    with pytest.raises(UserError, match="needs a multiple of 2 elements, not 7"):
        on_threads(2, work)
