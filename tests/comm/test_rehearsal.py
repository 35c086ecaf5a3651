"""Nothing is sent, and everything is counted."""

from __future__ import annotations

import torch
from workers import on_threads

from tutti.comm.base import Comm
from tutti.comm.metered import metered
from tutti.comm.rehearsal import Rehearsal


def do_something(comm: Comm, device: str) -> None:
    """Different for every worker."""
    buffer = torch.ones(10 * (comm.rank + 1), device=device)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.exchange([(right, buffer)], [(left, torch.empty(10 * (left + 1), device=device))], "control/x")
    comm.accumulate([(right, buffer)], [(left, torch.zeros(10 * (left + 1), device=device))], "control/x")
    comm.all_reduce(torch.ones(9, device=device))
    single, got = torch.ones(3, device=device), torch.empty(3, device=device)
    pending = comm.send(right, single, "control/y")
    assert comm.recv(left, got, "control/y").wait() is got
    pending.wait()
    pending = comm.send(right, single, "control/z")
    assert comm.recv_any([left], got, "control/z") == left
    pending.wait()


def test_bytes_are_those_of_a_real_wire() -> None:
    def work(comm: Comm) -> tuple[float, float]:
        counted = metered(comm)
        do_something(counted, "cpu")
        return counted.meter.sent(), sum(tally.received for tally in counted.meter.tallies.values())

    rehearsed = []
    for rank in range(3):
        comm = Rehearsal(rank, 3)
        do_something(comm, "meta")
        rehearsed.append((comm.sent, comm.received))
    assert rehearsed == on_threads(3, work)


def test_a_fork_counts_for_the_same_worker() -> None:
    comm = Rehearsal(0, 2)
    fork = comm.fork("lane")
    fork.barrier()
    fork.close()
    assert (comm.sent, comm.received) == (4, 4)
