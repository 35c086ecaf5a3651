"""Round a ring: who talks to whom, how often, in what pieces."""

from __future__ import annotations

import pytest
import torch
from workers import SIZES, on_tcp, on_threads

from tutti.collectives.base import Collective
from tutti.collectives.ring import Ring
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered
from tutti.spec import SpecError, parse


def meter_of(comm: Comm, route: Ring, length: int) -> Meter:
    counted = metered(comm)
    route.run(counted, torch.zeros(length), "gradients/0")
    return counted.meter


@pytest.mark.parametrize("size", SIZES[1:])
def test_everybody_sends_to_the_right_only(size: int) -> None:
    meters = on_threads(size, lambda comm: meter_of(comm, Ring(), 1000))
    for rank, meter in enumerate(meters):
        for (_, peer), tally in meter.tallies.items():
            assert (tally.sent > 0) == (peer == (rank + 1) % size)
            assert (tally.received > 0) == (peer == (rank - 1) % size)


@pytest.mark.parametrize("size", SIZES)
def test_rounds_are_those_of_the_cost(size: int) -> None:
    """With chunks below a segment a round is one message, each answering to the one before it."""
    meters = on_threads(size, lambda comm: meter_of(comm, Ring(), 1000))
    for meter in meters:
        assert sum(tally.messages for tally in meter.tallies.values()) == Ring().cost(size, 4000).rounds


def test_long_chunks_go_in_segments() -> None:
    """Chunks of 100 floats in segments of 30: four messages instead of one, and the same bytes."""
    meters = on_threads(3, lambda comm: meter_of(comm, Ring(segment=120), 300))
    for rank, meter in enumerate(meters):
        tally = meter.tallies["gradients", (rank + 1) % 3]
        assert (tally.messages, tally.sent) == (4 * 4, 4 * 400)


def test_reduce_and_broadcast_go_along_the_ring_in_segments() -> None:
    """100 floats in segments of 25 or less, from worker 3 round to 2 or to 3: nobody but the last passes nothing on."""

    def work(comm: Comm, operation: str) -> dict[int, tuple[int, float]]:
        counted = metered(comm)
        getattr(Ring(segment=100), operation)(counted, torch.zeros(100), "gradients/0", root=3)
        return {peer: (t.messages, t.sent) for (_, peer), t in counted.meter.tallies.items() if t.sent}

    for operation, last in (("broadcast", 2), ("reduce", 3)):
        for rank, sent in enumerate(on_threads(5, lambda comm, operation=operation: work(comm, operation))):
            assert sent == ({} if rank == last else {(rank + 1) % 5: (4, 400.0)})


def test_segments_shorten_the_path_of_a_broadcast() -> None:
    """As many rounds more as there are segments more, each with a segment only."""
    once, often = Ring(segment=1000).cost(5, 1000, "broadcast"), Ring(segment=100).cost(5, 1000, "broadcast")
    assert (once.rounds, once.path) == (4, 4000)
    assert (often.rounds, often.path) == (13, 1300)


def test_segment_shorter_than_an_element_still_moves() -> None:
    def work(comm: Comm) -> list[float]:
        buffer = torch.full((6,), comm.rank + 1.0, dtype=torch.complex128)
        Ring(segment=8).run(comm, buffer, "gradients/0")
        return buffer.real.tolist()

    assert on_threads(2, work) == [[3.0] * 6] * 2


def test_segment_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="segment of 'ring' must be at least 8 bytes, not 0"):
        parse("ring(segment=0)", Collective)


@pytest.mark.parametrize("size", [2, 5])
def test_over_sockets(size: int) -> None:
    """More than the sockets buffer, in several segments."""

    def work(comm: Comm) -> bool:
        ramp = torch.arange(3_000_001.0) % 1000
        buffer = ramp * (comm.rank + 1)
        Ring().run(comm, buffer, "gradients/0")
        return buffer.equal(ramp * sum(range(1, size + 1)))

    assert all(on_tcp(size, work))
