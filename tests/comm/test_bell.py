"""What is submitted to a lane while it waits begins at once, on wires whose waits can be interrupted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest
import torch
from meshes import mesh

from tutti.comm.base import LOST, Lane, PeerLost
from tutti.comm.metered import metered
from tutti.comm.shared import SharedComm
from tutti.comm.subset import Subset
from tutti.comm.tcp import TcpComm

LONG = 300_000  # elements: more than goes through shared memory at once


@pytest.mark.parametrize("wire", [TcpComm, SharedComm])
def test_one_begins_while_another_waits(wire: type[TcpComm]) -> None:
    """The peer sends what the first one waits for only when it has got the second one's message."""
    with mesh(wire, 2) as (ours, theirs):
        comm = metered(ours)
        lane = Lane(comm, torch.device("cpu"))
        out, into = torch.ones(LONG), [torch.zeros(LONG), torch.zeros(LONG)]
        done: list[list[bool]] = []

        def start(n: int) -> Callable[[], None]:
            complete = comm.start_exchange([(1, out)], [(1, into[n])], f"control/{n}")
            return lambda: done.append(complete())

        first = lane.submit_parts(lambda: start(0))
        time.sleep(0.05)  # it waits by now
        second = lane.submit_parts(lambda: start(1))
        theirs.recv(0, torch.zeros(LONG), "control/0").wait()
        assert theirs.recv(0, torch.zeros(LONG), "control/1").wait(deadline=10) is not LOST
        assert done == []
        for n in range(2):
            theirs.send(0, torch.full((LONG,), n + 2.0), f"control/{n}").wait()
        first.wait(), second.wait()
        assert [tensor.unique().tolist() for tensor in into] == [[2.0], [3.0]]
        lane.close()


@pytest.mark.parametrize("wire", [TcpComm, SharedComm])
def test_nothing_begins_beside_one_that_is_whole(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as (ours, theirs):
        lane = Lane(ours, torch.device("cpu"))
        done: list[str] = []

        def receive() -> None:
            ours.recv(1, torch.zeros(1), "control/x").wait()
            done.append("whole")

        def begin() -> Callable[[], None]:
            done.append("begun")
            return lambda: None

        whole = lane.submit(receive)
        parts = lane.submit_parts(begin)
        time.sleep(0.05)
        assert done == []
        theirs.send(0, torch.ones(1), "control/x").wait()
        whole.wait(), parts.wait()
        assert done == ["whole", "begun"]
        lane.close()


@pytest.mark.parametrize("wire", [TcpComm, SharedComm])
def test_whoever_waits_answers_and_waits_on(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as (ours, theirs):
        answers: list[threading.Thread] = []

        def answer() -> None:
            answers.append(threading.current_thread())
            theirs.send(0, torch.ones(3), "control/x").wait()

        ring = ours.bell(answer)
        threading.Timer(0.05, ring).start()
        tensor = torch.zeros(3)
        ours.recv(1, tensor, "control/x").wait()
        assert answers == [threading.current_thread()]
        assert tensor.eq(1).all()


@pytest.mark.parametrize("wire", [TcpComm, SharedComm])
def test_an_answer_that_raises_ends_the_wait(wire: type[TcpComm]) -> None:
    """And every later one, instead of leaving the next to wait in vain."""
    with mesh(wire, 2) as (ours, _):

        def answer() -> None:
            raise RuntimeError("workers 0 and 1 differ")

        threading.Timer(0.05, metered(ours).bell(answer)).start()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="workers 0 and 1 differ"):
                ours.recv(1, torch.zeros(3), "control/x").wait()


@pytest.mark.parametrize("wire", [TcpComm, SharedComm])
def test_an_interrupted_lane_ends_its_jobs(wire: type[TcpComm]) -> None:
    """Those that wait, and those that had not begun; and the lane can be closed."""
    with mesh(wire, 2) as (ours, _):
        lane = Lane(metered(ours), torch.device("cpu"))
        jobs = [lane.submit(lambda: ours.exchange([], [(1, torch.zeros(LONG))], "control/x")) for _ in range(2)]
        threading.Timer(0.05, lane.comm.interrupt, [RuntimeError("worker 1 raised")]).start()
        for job in jobs:
            with pytest.raises(RuntimeError, match="worker 1 raised"):
                job.wait()
        lane.close()


def test_an_interrupted_worker_says_goodbye() -> None:
    with mesh(TcpComm, 2) as (ours, theirs):
        ours.interrupt(RuntimeError("weights differ"))
        ours.close()
        with pytest.raises(PeerLost, match="left"):
            theirs.recv(0, torch.zeros(1), "control/x").wait()


def test_a_subset_interrupts_the_wire_beneath() -> None:
    with mesh(TcpComm, 3) as (ours, *_):
        Subset(ours, [0, 2]).interrupt(RuntimeError("weights differ"))
        with pytest.raises(RuntimeError, match="weights differ"):
            ours.recv(1, torch.zeros(1), "control/x").wait()


def test_behind_the_end_ringing_is_in_vain() -> None:
    with mesh(TcpComm, 2) as (ours, _):
        before = len(os.listdir("/proc/self/fd"))
        ring = ours.bell(lambda: None)
        ours.close()
        ring()
        assert len(os.listdir("/proc/self/fd")) < before, "the bell or a socket is still open"
