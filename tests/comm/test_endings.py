"""A worker dies, or leaves: what the others hear of it, on sockets and in shared memory."""

from __future__ import annotations

import gc
import os
import signal
import weakref

import pytest
import torch
import torch.distributed as dist
from meshes import cut, mesh, within
from workers import processes, side_by_side

from tutti.comm.base import Mismatch, PeerLost
from tutti.comm.handshake import Access
from tutti.comm.shared import SharedComm
from tutti.comm.tcp import TcpComm

BOTH = pytest.mark.parametrize("wire", [TcpComm, SharedComm], ids=["tcp", "shared"])


# --- deaths ----------------------------------------------------------------------------------------------------------


@BOTH
def test_dead_peer_ends_a_receive_at_once(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as (ours, theirs), within(5):
        cut(theirs)
        with pytest.raises(PeerLost, match=r"worker 1 died: its connection to worker 0 was cut"):
            ours.recv(1, torch.zeros(1), "control/x").wait()


@BOTH
def test_dead_peer_ends_a_receive_from_any_at_once(wire: type[TcpComm]) -> None:
    with mesh(wire, 3) as (ours, theirs, _), within(5):
        cut(theirs)
        with pytest.raises(PeerLost, match="worker 1 died"):
            ours.recv_any([1, 2], torch.zeros(1), "control/x")


@BOTH
def test_dead_peer_ends_waits_for_others_at_once(wire: type[TcpComm]) -> None:
    with mesh(wire, 3) as (ours, theirs, _), within(5):
        cut(theirs)
        with pytest.raises(PeerLost, match="worker 1 died"):
            ours.recv(2, torch.zeros(1), "control/x").wait()


@BOTH
def test_dead_peer_ends_a_send_that_needs_room(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as (ours, theirs), within(5):
        send = ours.send(1, torch.zeros(16 * 2**20), "control/x")
        cut(theirs)
        with pytest.raises(PeerLost, match="worker 1 died"):
            send.wait()


@BOTH
def test_after_a_death_every_call_says_so(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as (ours, theirs):
        cut(theirs)
        for _ in range(2):
            with pytest.raises(PeerLost, match=r"worker 1 (died|is dead)"):
                ours.recv(1, torch.zeros(1), "control/x").wait()
        with pytest.raises(PeerLost, match="worker 1 is dead"):
            ours.send(1, torch.zeros(1), "control/x")


def live_until_killed(kind: type[TcpComm], port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    comm = kind(1, 2, store, Access("127.0.0.1", b"known to all"))
    comm.send(0, torch.tensor([os.getpid()]), "control/pid").wait()
    comm.recv(0, torch.zeros(1), "control/never").wait()


@BOTH
def test_killed_process_is_noticed_at_once(wire: type[TcpComm]) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    process = processes.Process(target=live_until_killed, args=(wire, store.port), daemon=True)
    process.start()
    comm = wire(0, 2, store, Access("127.0.0.1", b"known to all"))
    assert comm.wire == ("shared" if wire is SharedComm else "tcp")
    pid = torch.zeros(1, dtype=torch.int64)
    comm.recv(1, pid, "control/pid").wait()
    os.kill(int(pid), signal.SIGKILL)
    with within(10), pytest.raises(PeerLost, match="worker 1 died"):
        comm.recv(1, torch.zeros(1), "control/x").wait()
    comm.close()
    process.join()


@BOTH
@pytest.mark.parametrize("length", [1, 999, 1001])
def test_after_a_message_of_the_wrong_length(wire: type[TcpComm], length: int) -> None:
    """Where the next one begins is unknown: the connection is of no use, and nothing else breaks."""
    with mesh(wire, 3) as (first, second, third), within(5):
        first.send(1, torch.randn(1000), "control/x")
        with pytest.raises(
            Mismatch, match=rf"worker 0 sent 4000 bytes where worker 1 expected {4 * length} \(control/x\)"
        ):
            second.recv(0, torch.zeros(length), "control/x").wait()
        third.send(1, torch.tensor([5.0]), "control/x")
        tensor = torch.zeros(1)
        second.recv(2, tensor, "control/x").wait()
        assert tensor.item() == 5.0
        with pytest.raises(PeerLost, match="worker 0 is dead"):
            second.recv(0, tensor, "control/x").wait()
        second.close()
        with pytest.raises(PeerLost, match="worker 1 died"):
            first.recv(1, tensor, "control/x").wait()


# --- goodbyes --------------------------------------------------------------------------------------------------------


@BOTH
def test_goodbye_is_no_death(wire: type[TcpComm]) -> None:
    """One worker leaves; the others go on, and only who waits for that one hears that it has left."""
    with mesh(wire, 3) as (first, second, third), within(5):
        third.close()
        first.send(1, torch.tensor([7.0]), "control/x")
        tensor = torch.zeros(1)
        second.recv(0, tensor, "control/x").wait()
        assert tensor.item() == 7.0
        with pytest.raises(PeerLost, match="worker 2 has left the run while worker 1 waited for its message"):
            second.recv(2, torch.zeros(1), "control/x").wait()
        with pytest.raises(PeerLost, match="worker 2 has left the run"):
            second.send(2, torch.zeros(1), "control/x")


@BOTH
def test_waiting_for_any_of_those_who_left_ends_at_once(wire: type[TcpComm]) -> None:
    with mesh(wire, 3) as (ours, second, third), within(5):
        second.close()
        third.close()
        with pytest.raises(PeerLost, match=r"have all left"):
            ours.recv_any([1, 2], torch.zeros(1), "control/x")


@BOTH
def test_one_may_leave_while_another_is_awaited(wire: type[TcpComm]) -> None:
    with mesh(wire, 3) as (ours, second, third):
        second.close()
        third.send(0, torch.tensor([3.0]), "control/x")
        tensor = torch.zeros(1)
        assert ours.recv_any([1, 2], tensor, "control/x") == 2
        assert tensor.item() == 3.0


@BOTH
def test_what_was_sent_before_the_goodbye_arrives(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as (ours, theirs):
        theirs.send(0, torch.tensor([1.0]), "control/first")
        theirs.send(0, torch.tensor([2.0]), "control/second")
        theirs.close()
        tensor = torch.zeros(2)
        ours.recv(1, tensor[1:], "control/second").wait()
        ours.recv(1, tensor[:1], "control/first").wait()
        assert tensor.tolist() == [1.0, 2.0]


@BOTH
def test_forks_are_closed_with_their_comm(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as comms:
        ours, _ = side_by_side(2, lambda rank: comms[rank].fork("lane"))
        comms[1].close()
        with within(5), pytest.raises(PeerLost, match="has left the run"):
            ours.recv(1, torch.zeros(1), "control/x").wait()


@BOTH
def test_forks_that_are_closed_are_let_go_of(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as comms:
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        kept = side_by_side(2, lambda rank: weakref.ref(comms[rank].fork("kept")))
        for _ in range(5):
            for fork in side_by_side(2, lambda rank: comms[rank].fork("lane")):
                fork.close()
        gc.collect()
        assert [len(comm._forks) for comm in comms] == [1, 1]
        assert all(fork() is not None for fork in kept), "one that is open belongs to its comm"
        for fork in kept:
            fork().close()
        gc.collect()
        assert all(fork() is None for fork in kept)
        assert len(os.listdir("/proc/self/fd")) == before


@BOTH
def test_closing_again_does_nothing(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as (ours, _):
        ours.close()
        ours.close()


@BOTH
def test_one_worker_needs_no_socket(wire: type[TcpComm]) -> None:
    comm = wire(0, 1, dist.HashStore(), Access("192.0.2.1", b""))  # an address that is not ours is never tried
    comm.barrier()
    comm.close()
