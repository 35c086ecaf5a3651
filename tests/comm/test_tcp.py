"""What only sockets can do wrong: deaths, goodbyes, half-received frames, full buffers."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from workers import make_tls, processes, side_by_side

from tutti.comm.base import LOST, Mismatch, PeerLost
from tutti.comm.handshake import Access, new_secret
from tutti.comm.link import HEADER
from tutti.comm.tcp import TcpComm


@contextmanager
def mesh(size: int, **access: Any) -> Iterator[list[TcpComm]]:
    """All ends of one mesh in one thread's hands."""
    store = dist.HashStore()
    pass_for = Access(**{"address": "127.0.0.1", "secret": b"known to all", "timeout": 20.0} | access)
    comms = side_by_side(size, lambda rank: TcpComm(rank, size, store, pass_for))
    try:
        yield comms
    finally:
        for comm in comms:
            comm.close()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    assert time.perf_counter() - begun < seconds


def cut(comm: TcpComm) -> None:
    """End as a crashed process does: the kernel closes the sockets and nobody says goodbye."""
    for link in comm._links.values():
        link.connection.close()
    comm._links.clear()


def write(comm: TcpComm, peer: int, data: bytes) -> None:
    """Bytes on the wire, as a sender that is interrupted would leave them."""
    comm._links[peer].connection.sendall(data)


def frame(comm: TcpComm, tensor: torch.Tensor) -> bytes:
    """A whole message, as it goes over the wire."""
    return HEADER.pack(comm._code("control/x"), tensor.nbytes) + tensor.numpy().tobytes()


# --- deaths and goodbyes ---------------------------------------------------------------------------------------------


def test_dead_peer_ends_a_receive_at_once() -> None:
    with mesh(2) as (ours, theirs), within(5):
        cut(theirs)
        with pytest.raises(PeerLost, match=r"worker 1 died: its connection to worker 0 was cut"):
            ours.recv(1, torch.zeros(1), "control/x").wait()


def test_dead_peer_ends_a_receive_from_any_at_once() -> None:
    with mesh(3) as (ours, theirs, _), within(5):
        cut(theirs)
        with pytest.raises(PeerLost, match="worker 1 died"):
            ours.recv_any([1, 2], torch.zeros(1), "control/x")


def test_dead_peer_ends_waits_for_others_at_once() -> None:
    with mesh(3) as (ours, theirs, _), within(5):
        cut(theirs)
        with pytest.raises(PeerLost, match="worker 1 died"):
            ours.recv(2, torch.zeros(1), "control/x").wait()


def test_dead_peer_ends_a_send_that_needs_room() -> None:
    with mesh(2) as (ours, theirs), within(5):
        send = ours.send(1, torch.zeros(16 * 2**20), "control/x")
        cut(theirs)
        with pytest.raises(PeerLost, match="worker 1 died"):
            send.wait()


def test_after_a_death_every_call_says_so() -> None:
    with mesh(2) as (ours, theirs):
        cut(theirs)
        for _ in range(2):
            with pytest.raises(PeerLost, match=r"worker 1 (died|is dead)"):
                ours.recv(1, torch.zeros(1), "control/x").wait()
        with pytest.raises(PeerLost, match="worker 1 is dead"):
            ours.send(1, torch.zeros(1), "control/x")


def live_until_killed(port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    comm = TcpComm(1, 2, store, Access("127.0.0.1", b"known to all"))
    comm.send(0, torch.tensor([os.getpid()]), "control/pid").wait()
    comm.recv(0, torch.zeros(1), "control/never").wait()


def test_killed_process_is_noticed_at_once() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    process = processes.Process(target=live_until_killed, args=(store.port,), daemon=True)
    process.start()
    comm = TcpComm(0, 2, store, Access("127.0.0.1", b"known to all"))
    pid = torch.zeros(1, dtype=torch.int64)
    comm.recv(1, pid, "control/pid").wait()
    os.kill(int(pid), signal.SIGKILL)
    with within(10), pytest.raises(PeerLost, match="worker 1 died"):
        comm.recv(1, torch.zeros(1), "control/x").wait()
    comm.close()
    process.join()


def test_goodbye_is_no_death() -> None:
    """One worker leaves; the others go on, and only who waits for that one hears that it has left."""
    with mesh(3) as (first, second, third), within(5):
        third.close()
        first.send(1, torch.tensor([7.0]), "control/x")
        tensor = torch.zeros(1)
        second.recv(0, tensor, "control/x").wait()
        assert tensor.item() == 7.0
        with pytest.raises(PeerLost, match="worker 2 had finished and left while worker 1 waited for it"):
            second.recv(2, torch.zeros(1), "control/x").wait()
        with pytest.raises(PeerLost, match="worker 2 had finished and left"):
            second.send(2, torch.zeros(1), "control/x")


def test_waiting_for_any_of_those_who_left_ends_at_once() -> None:
    with mesh(3) as (ours, second, third), within(5):
        second.close()
        third.close()
        with pytest.raises(PeerLost, match=r"have all left"):
            ours.recv_any([1, 2], torch.zeros(1), "control/x")


def test_one_may_leave_while_another_is_awaited() -> None:
    with mesh(3) as (ours, second, third):
        second.close()
        third.send(0, torch.tensor([3.0]), "control/x")
        tensor = torch.zeros(1)
        assert ours.recv_any([1, 2], tensor, "control/x") == 2
        assert tensor.item() == 3.0


def test_sending_to_one_who_left_is_no_death() -> None:
    """The kernel answers with a reset, behind the goodbye that is already here."""
    with mesh(2) as (ours, theirs):
        theirs.close()
        ours.send(1, torch.zeros(1000), "control/x").wait()
        time.sleep(0.05)
        send = ours.send(1, torch.zeros(1000), "control/x")
        with pytest.raises(PeerLost, match="worker 1 had finished and left"):
            send.wait()


def test_what_was_sent_before_the_goodbye_arrives() -> None:
    with mesh(2) as (ours, theirs):
        theirs.send(0, torch.tensor([1.0]), "control/first")
        theirs.send(0, torch.tensor([2.0]), "control/second")
        theirs.close()
        tensor = torch.zeros(2)
        ours.recv(1, tensor[1:], "control/second").wait()
        ours.recv(1, tensor[:1], "control/first").wait()
        assert tensor.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_goodbye_waits_for_room(encrypted: bool, tmp_path: Path) -> None:
    """Leaving while everything sent still fills the buffers: the slow reader gets all of it, and the goodbye."""
    with mesh(2, tls=make_tls(tmp_path) if encrypted else None) as (ours, theirs):
        theirs._links[0].connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sends = [theirs.send(0, torch.full((1000,), float(n)), "control/x") for n in range(2000)]
        leaving = threading.Thread(target=theirs.close)
        leaving.start()
        time.sleep(0.1)
        tensor = torch.zeros(1000)
        for n in range(len(sends)):
            ours.recv(1, tensor, "control/x").wait()
            assert tensor.eq(n).all()
        leaving.join()
        with pytest.raises(PeerLost, match="had finished and left"):
            ours.recv(1, tensor, "control/x").wait()


def test_a_message_to_one_who_is_leaving_costs_nothing() -> None:
    """A kernel answers bytes for a closed socket with a reset, and drops what that socket still had to send."""
    with mesh(2) as (ours, theirs):
        ours._links[1].connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sent = torch.arange(10_000.0)
        assert theirs.send(0, sent, "control/x").done, "the kernel should have taken all of it"
        leaving = threading.Thread(target=theirs.close)
        leaving.start()
        time.sleep(0.1)
        ours.send(1, torch.zeros(1000), "control/late").wait()
        time.sleep(0.1)
        tensor = torch.zeros(10_000)
        ours.recv(1, tensor, "control/x").wait()
        leaving.join()
        assert tensor.equal(sent)


def test_forks_are_closed_with_their_comm() -> None:
    with mesh(2) as comms:
        ours, _ = side_by_side(2, lambda rank: comms[rank].fork("lane"))
        comms[1].close()
        with within(5), pytest.raises(PeerLost, match="had finished and left"):
            ours.recv(1, torch.zeros(1), "control/x").wait()


def test_closing_again_does_nothing() -> None:
    with mesh(2) as (ours, _):
        ours.close()
        ours.close()


def test_one_worker_needs_no_socket() -> None:
    comm = TcpComm(0, 1, dist.HashStore(), Access("192.0.2.1", b""))  # an address that is not ours is never tried
    comm.barrier()
    comm.close()


@pytest.mark.parametrize("length", [1, 999, 1001])
def test_after_a_message_of_the_wrong_length(length: int) -> None:
    """Where the next one begins is unknown: the connection is of no use, and nothing else breaks."""
    with mesh(3) as (first, second, third), within(5):
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


# --- silence and slowness --------------------------------------------------------------------------------------------


def test_noise_of_others_does_not_hide_a_silent_peer() -> None:
    with mesh(3) as (ours, _, noisy):
        ours.timeout = 0.2
        stop = threading.Event()

        def chatter() -> None:
            while not stop.is_set():
                noisy.send(0, torch.zeros(1), "control/noise").wait()
                time.sleep(0.01)

        talking = threading.Thread(target=chatter)
        talking.start()
        with within(10), pytest.raises(PeerLost, match="worker 1 did not answer worker 0"):
            ours.recv(1, torch.zeros(1), "control/x").wait()
        stop.set()
        talking.join()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_slow_reader_is_not_silent(encrypted: bool, tmp_path: Path) -> None:
    """A peer that keeps taking bytes lives, although it says nothing: the send may take longer than the timeout."""
    with mesh(2, tls=make_tls(tmp_path) if encrypted else None) as (ours, theirs):
        ours.timeout = 0.6
        tensor, reader = torch.zeros(2**20), theirs._links[0].connection
        ours._links[1].connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**17)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**17)

        def read_slowly() -> None:
            reader.settimeout(10)
            left, scratch = HEADER.size + tensor.nbytes, bytearray(2**17)
            while left:
                for _ in range(8 if encrypted else 1):  # a record of TLS is short
                    left -= reader.recv_into(scratch, min(left, len(scratch))) if left else 0
                time.sleep(0.04)
            reader.setblocking(False)

        def send() -> float:
            begun = time.perf_counter()
            ours.send(1, tensor, "control/x").wait()
            return time.perf_counter() - begun

        took, _ = side_by_side(2, lambda rank: send() if rank == 0 else read_slowly())
        assert took > ours.timeout, "too fast for this test to mean anything"


def test_slow_sender_is_not_silent() -> None:
    """A long message that comes in drops is a sign of life with every drop."""
    with mesh(2) as (ours, theirs):
        ours.timeout = 0.6
        sent, tensor = torch.arange(2.0**17), torch.zeros(2**17)
        data = frame(theirs, sent)

        def send_slowly() -> None:
            for begin in range(0, len(data), 2**15):
                write(theirs, 0, data[begin : begin + 2**15])
                time.sleep(0.06)

        def receive() -> float:
            begun = time.perf_counter()
            ours.recv(1, tensor, "control/x").wait()
            return time.perf_counter() - begun

        took, _ = side_by_side(2, lambda rank: receive() if rank == 0 else send_slowly())
        assert tensor.equal(sent)
        assert took > ours.timeout, "too fast for this test to mean anything"


# --- deadlines within a frame ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrived", [0, 5, 16, 17, 30, 39])
@pytest.mark.parametrize("asked_before", [True, False])
def test_half_received_frame_is_thrown_away(arrived: int, asked_before: bool) -> None:
    """The deadline passes when so many bytes are there, some of them perhaps before anybody asked for them."""
    with mesh(2) as (ours, theirs):
        data, untouched = frame(theirs, torch.arange(6.0)), torch.full((6,), -1.0)
        if asked_before:
            receive = ours.recv(1, untouched, "control/x")
            write(theirs, 0, data[:arrived])
        else:
            write(theirs, 0, data[:arrived])
            assert ours.recv(1, torch.zeros(1), "control/other").wait(deadline=0.05) is LOST
            receive = ours.recv(1, untouched, "control/x")
        assert receive.wait(deadline=0.05) is LOST
        before = untouched.clone()
        write(theirs, 0, data[arrived:])
        theirs.send(0, torch.arange(6.0) + 10, "control/x")
        tensor = torch.zeros(6)
        ours.recv(1, tensor, "control/x").wait()
        assert tensor.equal(torch.arange(6.0) + 10)
        assert untouched.equal(before), "a tensor is written to after its receive was given up"


def test_frames_in_pieces() -> None:
    """However the bytes are cut, every message lands in its own receive."""
    with mesh(2) as (ours, theirs):
        sent = [torch.arange(float(n)) + n for n in (3, 0, 5, 1)]
        data = b"".join(frame(theirs, tensor) for tensor in sent)
        for step in (1, 7, 15, 16, 17, 33):
            received = [torch.zeros(len(tensor)) for tensor in sent]
            pending = [ours.recv(1, tensor, "control/x") for tensor in received]
            for begin in range(0, len(data), step):
                write(theirs, 0, data[begin : begin + step])
                ours._progress(0)
            for each in pending:
                each.wait()
            assert all(a.equal(b) for a, b in zip(sent, received, strict=True))


# --- refusals --------------------------------------------------------------------------------------------------------


def test_tags_that_collide_are_refused() -> None:
    """Both have the same CRC-32."""
    with mesh(2) as (ours, _):
        ours.send(1, torch.zeros(1), "plumless")
        with pytest.raises(ValueError, match="tag 'buckeroo' collides"):
            ours.send(1, torch.zeros(1), "buckeroo")


def test_only_contiguous_tensors_travel() -> None:
    with mesh(2) as (ours, _):
        for call in (ours.send, ours.recv):
            with pytest.raises(ValueError, match="only contiguous tensors"):
                call(1, torch.zeros(4, 4).t()[1:], "control/x")


def test_tls_encrypts_every_connection(tmp_path: Path) -> None:
    with mesh(3, tls=make_tls(tmp_path)) as comms:
        for comm in comms:
            for link in comm._links.values():
                assert isinstance(link.connection, ssl.SSLSocket)
                assert link.connection.version() == "TLSv1.3"


def test_secrets_are_long_and_new() -> None:
    assert len(new_secret()) == 32
    assert new_secret() != new_secret()
