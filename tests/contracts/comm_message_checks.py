"""What wires with tags and single messages must do (`MESSAGES`), and those whose waits can end early (`DEADLINES`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from contracts.comm_checks import Check, cases, forks_run_side_by_side, same, value
from torch import nn

from tutti.comm.base import LOST, Comm, Mismatch, PeerLost
from tutti.comm.metered import Metered

# --- on wires with tags and single messages --------------------------------------------------------------------------


def send_and_recv(comm: Comm) -> None:
    for shape, dtype in cases():
        sends = [comm.send(p, value(comm.rank, shape, dtype, what=p), "control/check") for p in comm.others()]
        for peer in comm.others():
            tensor = torch.zeros(shape, dtype=dtype)
            assert comm.recv(peer, tensor, "control/check").wait() is tensor
            same(tensor, value(peer, shape, dtype, what=comm.rank))
        for send in sends:
            assert send.wait() is not LOST


def tags_in_any_order(comm: Comm) -> None:
    """A message waits for a receive of its own tag, whatever else was sent before or after it."""
    tags = [f"control/{n}" for n in range(4)]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sends = [comm.send(right, value(comm.rank, (n + 1,), torch.int64, what=n), tags[n]) for n in range(4)]
    for n in (2, 0, 3, 1):
        tensor = torch.zeros(n + 1, dtype=torch.int64)
        comm.recv(left, tensor, tags[n]).wait()
        same(tensor, value(left, (n + 1,), torch.int64, what=n))
    for send in sends:
        send.wait()


def receives_posted_before_the_sends(comm: Comm) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    tensors = {tag: torch.zeros(5) for tag in ("control/a", "control/b")}
    receives = [comm.recv(left, tensor, tag) for tag, tensor in tensors.items()]
    comm.barrier()
    sends = [
        comm.send(right, value(comm.rank, (5,), torch.float32, what=n), tag)
        for n, tag in enumerate(["control/b", "control/a"])
    ]
    for pending in (*receives, *sends):
        pending.wait()
    same(tensors["control/b"], value(left, (5,), torch.float32, what=0))
    same(tensors["control/a"], value(left, (5,), torch.float32, what=1))


def receive_from_any(comm: Comm) -> None:
    """Worker 0 hears every other one exactly twice, in whatever order they come."""
    if comm.rank == 0:
        heard = []
        for _ in range(2 * (comm.size - 1)):
            tensor = torch.zeros(3)
            source = comm.recv_any(comm.others(), tensor, "control/any")
            same(tensor, value(source, (3,), torch.float32, what=heard.count(source)))
            heard.append(source)
        assert sorted(heard) == sorted(2 * comm.others())
    else:
        for n in range(2):
            comm.send(0, value(comm.rank, (3,), torch.float32, what=n), "control/any").wait()


def forks_do_not_mix(comm: Comm) -> None:
    """The same peer and tag on a comm, on its fork, on another fork of the same name and on a fork of the fork."""
    first, second = comm.fork("lane"), comm.fork("lane")
    wires = [comm, first, second, first.fork("lane")]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sends = [w.send(right, value(comm.rank, (4,), torch.float32, what=n), "control/x") for n, w in enumerate(wires)]
    for n in (3, 2, 1, 0):
        tensor = torch.zeros(4)
        wires[n].recv(left, tensor, "control/x").wait()
        same(tensor, value(left, (4,), torch.float32, what=n))
    for send in sends:
        send.wait()
    for wire in reversed(wires[1:]):
        wire.close()


def big_messages_both_ways(comm: Comm) -> None:
    """8 MiB to and from the neighbours at once, more than any socket buffers: nobody may wait for room."""
    numel = 2 * 2**20
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine, theirs = value(comm.rank, (numel,), torch.float32), value(left, (numel,), torch.float32)
    landing = torch.zeros(numel)
    comm.exchange([(right, mine)], [(left, landing)], "control/big")
    same(landing, theirs)
    send = comm.send(right, mine, "control/big")
    comm.recv(left, landing.zero_(), "control/big").wait()
    send.wait()
    same(landing, theirs)


def parameters_travel(comm: Comm) -> None:
    """Tensors that require gradients are sent and received as they stand, and no graph is built."""
    parameter = nn.Parameter(value(comm.rank, (6,), torch.float32))
    landing = nn.Parameter(torch.zeros(6))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.exchange([(right, parameter)], [(left, landing)], "control/parameter")
    same(landing.detach(), value(left, (6,), torch.float32))
    plain = torch.zeros(6)
    comm.exchange([(right, parameter)], [(left, plain)], "control/parameter")
    assert landing.is_leaf
    assert not plain.requires_grad


FORKS: list[Check] = [forks_run_side_by_side, forks_do_not_mix]
MESSAGES: list[Check] = [
    send_and_recv,
    tags_in_any_order,
    receives_posted_before_the_sends,
    receive_from_any,
    forks_do_not_mix,
    big_messages_both_ways,
    parameters_travel,
]


# --- on wires whose waits can end early ------------------------------------------------------------------------------


def late_message_is_thrown_away(comm: Comm) -> None:
    """Worker 0 gives worker 1 up twice; both messages come later, and only the third is received."""
    if comm.rank == 0:
        for _ in range(2):
            untouched = torch.full((3,), -1.0)
            assert comm.recv(1, untouched, "control/data").wait(deadline=0.02) is LOST
        comm.send(1, torch.ones(1), "control/go").wait()
        tensor = torch.zeros(3)
        comm.recv(1, tensor, "control/data").wait()
        same(tensor, value(1, (3,), torch.float32, what=2))
        same(untouched, torch.full((3,), -1.0))
    else:
        comm.recv(0, torch.zeros(1), "control/go").wait()
        for n in range(3):
            comm.send(0, value(1, (3,), torch.float32, what=n), "control/data").wait()


def deadline_spares_other_tags(comm: Comm) -> None:
    """What is given up under one tag does not touch a message under another."""
    if comm.rank == 0:
        assert comm.recv(1, torch.zeros(3), "control/lost").wait(deadline=0.02) is LOST
        comm.send(1, torch.ones(1), "control/go").wait()
        tensor = torch.zeros(3)
        comm.recv(1, tensor, "control/kept").wait()
        same(tensor, value(1, (3,), torch.float32))
    else:
        comm.recv(0, torch.zeros(1), "control/go").wait()
        comm.send(0, value(1, (3,), torch.float32), "control/kept").wait()


def deadline_that_is_met(comm: Comm) -> None:
    if comm.rank == 0:
        tensor = torch.zeros(3)
        assert comm.recv(1, tensor, "control/data").wait(deadline=15.0) is tensor
        same(tensor, value(1, (3,), torch.float32))
    else:
        time.sleep(0.02)
        assert comm.send(0, value(1, (3,), torch.float32), "control/data").wait(deadline=15.0) is not LOST


def deadline_of_nothing_takes_what_is_there(comm: Comm) -> None:
    """wait(0) asks without waiting: what has arrived is received."""
    if comm.rank == 0:
        comm.recv(1, torch.zeros(1), "control/sent").wait()
        time.sleep(0.1)
        tensor = torch.zeros(3)
        assert comm.recv(1, tensor, "control/data").wait(deadline=0) is tensor
        same(tensor, value(1, (3,), torch.float32))
        assert comm.recv(1, tensor, "control/data").wait(deadline=0) is LOST
        comm.send(1, torch.ones(1), "control/end").wait()
    else:
        sends = [comm.send(0, torch.ones(1), "control/sent")]
        sends.append(comm.send(0, value(1, (3,), torch.float32), "control/data"))
        comm.recv(0, torch.zeros(1), "control/end").wait()
        for send in sends:
            send.wait()


def silent_peer_is_lost(comm: Comm) -> None:
    """Worker 0 waits for a worker that lives and says nothing: by receive, by exchange, from any."""
    if comm.rank == 0:
        _innermost(comm).timeout = 0.1
        for wait in (
            lambda: comm.recv(1, torch.zeros(3), "control/never").wait(),
            lambda: comm.exchange([], [(1, torch.zeros(3))], "control/never"),
            lambda: comm.recv_any([1], torch.zeros(3), "control/never"),
        ):
            begun = time.perf_counter()
            with pytest.raises(
                PeerLost,
                match=r"worker 1 was silent for 0\.1 s while worker 0 waited for its message .*; a longer",
            ):
                wait()
            assert 0.09 < time.perf_counter() - begun < 10
        comm.send(1, torch.ones(1), "control/end").wait()
    else:
        comm.recv(0, torch.zeros(1), "control/end").wait()


def lengths_must_match(comm: Comm) -> None:
    """A message longer or shorter than the tensor it should go into is an error that says who, what and where."""
    if comm.rank == 0:
        with pytest.raises(Mismatch, match=r"worker 1 sent .* where worker 0 expected .*control/data"):
            comm.recv(1, torch.zeros(3), "control/data").wait()
    else:
        comm.send(0, torch.randn(2000), "control/data")
        time.sleep(0.05)


def an_interruption_ends_waits(comm: Comm) -> None:
    """At once, whatever is waited for, and every later call; forks go on."""
    fork = comm.fork("other")
    if comm.rank == 0:
        error = RuntimeError("weights differ")
        threading.Timer(0.05, comm.interrupt, [error]).start()
        with pytest.raises(RuntimeError, match="weights differ") as first:
            comm.recv(1, torch.zeros(3), "control/never").wait()
        assert first.value is error
        comm.interrupt(RuntimeError("a later one does not count"))
        calls: list[Callable[[], object]] = [
            lambda: comm.exchange([(1, torch.ones(1))], [(1, torch.zeros(1))], "control/x"),
            lambda: comm.recv_any([1], torch.zeros(1), "control/x"),
            lambda: comm.send(1, torch.ones(1), "control/x"),
            comm.barrier,
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="weights differ"):
                call()
    fork.barrier()
    fork.close()


def an_interruption_ends_a_wait_for_any(comm: Comm) -> None:
    fork = comm.fork("other")
    if comm.rank == 0:
        threading.Timer(0.05, comm.interrupt, [KeyError("x")]).start()
        with pytest.raises(KeyError):
            comm.recv_any(comm.others(), torch.zeros(1), "control/never")
    fork.barrier()
    fork.close()


DEADLINES: list[Check] = [
    an_interruption_ends_waits,
    an_interruption_ends_a_wait_for_any,
    late_message_is_thrown_away,
    deadline_spares_other_tags,
    deadline_that_is_met,
    deadline_of_nothing_takes_what_is_there,
    silent_peer_is_lost,
    lengths_must_match,
]


def _innermost(comm: Comm) -> Comm:
    return _innermost(comm.inner) if isinstance(comm, Metered) else comm
