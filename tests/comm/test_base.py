"""The lane: one thread, one thing after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from tutti.comm.base import LOST, Clock, Comm, Lane
from tutti.comm.threads import World


class Standing(Clock):
    """Time passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def comm() -> Comm:
    return World(1, clock=Standing()).comm(0)


@pytest.fixture
def lane(comm: Comm) -> Iterator[Lane]:
    lane = Lane(comm, torch.device("cpu"))
    yield lane
    lane.close()


def test_everything_runs_in_the_order_it_was_submitted(lane: Lane) -> None:
    done: list[int] = []
    pending = [lane.submit(lambda n=n: done.append(n)) for n in range(200)]
    pending[-1].wait()
    assert done == list(range(200))


def test_one_thing_at_a_time(lane: Lane) -> None:
    running, most = 0, 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.001)
        running -= 1

    for pending in [lane.submit(work) for _ in range(20)]:
        pending.wait()
    assert most == 1


def test_submitting_does_not_wait(lane: Lane) -> None:
    go = threading.Event()
    first = lane.submit(lambda: _(go.wait(10)))
    second = lane.submit(lambda: None)
    assert first.wait(deadline=0.01) is LOST
    assert second.wait(deadline=0.01) is LOST
    go.set()
    assert second.wait() is not LOST


def _(_result: object) -> None:
    """Makes a statement of an expression."""


def test_error_is_raised_where_it_is_waited_for(lane: Lane) -> None:
    def fail() -> None:
        raise KeyError("no such bucket")

    failing, fine = lane.submit(fail), lane.submit(lambda: None)
    assert fine.wait() is not LOST
    for _again in range(2):
        with pytest.raises(KeyError, match="no such bucket"):
            failing.wait()


def test_all_in_two_parts_begin_before_one_is_complete(lane: Lane) -> None:
    """But nothing overtakes one that is whole."""
    go, done = threading.Event(), []

    def parts(n: int) -> Callable[[], None]:
        done.append(f"{n} begins")
        return lambda: done.append(f"{n} ends")

    lane.submit(lambda: _(go.wait(10)))
    for n in range(3):
        lane.submit_parts(partial(parts, n))
    lane.submit(lambda: done.append("whole"))
    last = lane.submit_parts(partial(parts, 3))
    go.set()
    last.wait()
    first = ["0 begins", "1 begins", "2 begins", "0 ends", "1 ends", "2 ends"]
    assert done == [*first, "whole", "3 begins", "3 ends"]


@pytest.mark.parametrize("where", ["first", "second"])
def test_an_error_in_either_part_is_that_ones_alone(lane: Lane, where: str) -> None:
    def fail() -> None:
        raise KeyError("no such bucket")

    def parts(fails: bool) -> Callable[[], None]:
        if fails and where == "first":
            fail()
        return fail if fails else lambda: None

    pending = [lane.submit_parts(partial(parts, n == 1)) for n in range(3)]
    assert pending[0].wait() is not LOST
    assert pending[2].wait() is not LOST
    with pytest.raises(KeyError, match="no such bucket"):
        pending[1].wait()


def test_closing_finishes_what_was_submitted(comm: Comm) -> None:
    lane = Lane(comm, torch.device("cpu"))
    done: list[int] = []
    for n in range(10):
        lane.submit(lambda n=n: (time.sleep(0.001), done.append(n))[1])
    lane.submit_parts(lambda: lambda: done.append(10))
    lane.close()
    assert done == list(range(11))
    lane.close()
    with pytest.raises(RuntimeError, match="the lane is closed"):
        lane.submit(lambda: None)


def test_closing_on_the_lane_itself(comm: Comm) -> None:
    """As the garbage collector may: it must not wait for its own thread."""
    lane = Lane(comm, torch.device("cpu"))
    assert lane.submit(lane.close).wait(deadline=10) is not LOST


def test_busy_time_is_the_clocks(lane: Lane) -> None:
    clock = lane.comm.clock
    for seconds in (2.0, 3.0):
        lane.submit(lambda seconds=seconds: clock.sleep(seconds)).wait()
    assert lane.take_busy() == 5.0
    assert lane.take_busy() == 0.0


def test_clock_goes_forward() -> None:
    clock = Clock()
    begun = clock.now()
    clock.sleep(0.02)
    assert 0.02 <= clock.now() - begun < 10


def test_others_begin_behind_each_worker() -> None:
    assert [World(4).comm(rank).others() for rank in range(4)] == [[1, 2, 3], [2, 3, 0], [3, 0, 1], [0, 1, 2]]
    assert World(1).comm(0).others() == []
