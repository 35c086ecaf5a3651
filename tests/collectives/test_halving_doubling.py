"""How groups split, for every number of workers."""

from __future__ import annotations

import math

import pytest
import torch
from workers import on_threads

from tutti.collectives.halving_doubling import HalvingDoubling, find_halvings
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered

EVERY_SIZE = pytest.mark.parametrize("size", range(1, 17))


def test_four_workers() -> None:
    first, second = find_halvings(1, 4)
    assert (first.gives, first.takes) == (((3, 2, 4),), ((3, 0, 2),)), "pieces 2 and 3 for pieces 0 and 1"
    assert (second.gives, second.takes) == (((0, 0, 1),), ((0, 1, 2),))


def test_the_one_without_a_partner() -> None:
    """Of five, worker 2 gives workers 3 and 4 their pieces and takes nothing."""
    assert find_halvings(2, 5)[0].gives == ((3, 3, 4), (4, 4, 5))
    assert find_halvings(2, 5)[0].takes == ()
    assert find_halvings(4, 5)[0].takes == ((2, 4, 5), (1, 3, 5))


@EVERY_SIZE
def test_what_one_gives_another_takes(size: int) -> None:
    plans = [find_halvings(rank, size) for rank in range(size)]
    for level in range(max(map(len, plans))):
        steps = {rank: plan[level] for rank, plan in enumerate(plans) if level < len(plan)}
        given = {(rank, *span) for rank, step in steps.items() for span in step.gives}
        taken = {(peer, rank, first, end) for rank, step in steps.items() for peer, first, end in step.takes}
        assert given == taken


@EVERY_SIZE
def test_every_contribution_to_a_piece_comes_to_its_owner_once(size: int) -> None:
    """Followed piece by piece: who has whose contribution to it."""
    holds = [[{rank} for _ in range(size)] for rank in range(size)]
    plans = [find_halvings(rank, size) for rank in range(size)]
    for level in range(max(map(len, plans))):
        before = [[set(piece) for piece in row] for row in holds]
        for rank, plan in enumerate(plans):
            for peer, first, end in plan[level].takes if level < len(plan) else ():
                for piece in range(first, end):
                    assert not holds[rank][piece] & before[peer][piece]
                    holds[rank][piece] |= before[peer][piece]
    assert all(holds[rank][rank] == set(range(size)) for rank in range(size))


@pytest.mark.parametrize("size", range(2, 17))
def test_bytes_stay_near_the_least_there_can_be(size: int) -> None:
    """What the docstring says of numbers that are no power of two; folding would make it 3.5 and more."""
    cost, least = HalvingDoubling().cost(size, 1000), 2 * (size - 1) / size * 1000
    assert cost.rounds == 2 * math.ceil(math.log2(size))
    assert cost.total == pytest.approx(size * least)
    assert cost.busiest <= 2200
    assert cost.path <= 2500
    assert (cost.busiest == cost.path == least) == (size.bit_count() == 1)


def test_partners_at_half_the_distance() -> None:
    def work(comm: Comm) -> Meter:
        counted = metered(comm)
        HalvingDoubling().run(counted, torch.zeros(80), "gradients/0")
        return counted.meter

    for rank, meter in enumerate(on_threads(8, work)):
        sent = {peer: tally.sent for (_, peer), tally in meter.tallies.items()}
        assert sent == {rank ^ 4: 320.0, rank ^ 2: 160.0, rank ^ 1: 80.0}
