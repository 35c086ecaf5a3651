"""What only sockets can do wrong: resets behind a goodbye, half-received frames, full buffers."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
import torch
from meshes import mesh, within
from workers import make_tls, side_by_side

from tutti.comm.base import LOST, PeerLost
from tutti.comm.handshake import new_secret
from tutti.comm.link import HEADER
from tutti.comm.tcp import TcpComm


def write(comm: TcpComm, peer: int, data: bytes) -> None:
    """Bytes on the wire, as a sender that is interrupted would leave them."""
    comm._links[peer].connection.sendall(data)


def frame(comm: TcpComm, tensor: torch.Tensor) -> bytes:
    """A whole message, as it goes over the wire."""
    return HEADER.pack(comm._code("control/x"), tensor.nbytes) + tensor.numpy().tobytes()


# --- goodbyes --------------------------------------------------------------------------------------------------------


def test_sending_to_one_who_left_is_no_death() -> None:
    """The kernel answers with a reset, behind the goodbye that is already here."""
    with mesh(TcpComm, 2) as (ours, theirs):
        theirs.close()
        ours.send(1, torch.zeros(1000), "control/x").wait()
        time.sleep(0.05)
        send = ours.send(1, torch.zeros(1000), "control/x")
        with pytest.raises(PeerLost, match="worker 1 has left the run"):
            send.wait()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_goodbye_waits_for_room(encrypted: bool, tmp_path: Path) -> None:
    """Leaving while everything sent still fills the buffers: the slow reader gets all of it, and the goodbye."""
    with mesh(TcpComm, 2, tls=make_tls(tmp_path) if encrypted else None) as (ours, theirs):
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
        with pytest.raises(PeerLost, match="has left the run"):
            ours.recv(1, tensor, "control/x").wait()


def test_a_message_to_one_who_is_leaving_costs_nothing() -> None:
    """A kernel answers bytes for a closed socket with a reset, and drops what that socket still had to send."""
    with mesh(TcpComm, 2) as (ours, theirs):
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


# --- silence and slowness --------------------------------------------------------------------------------------------


def test_noise_of_others_does_not_hide_a_silent_peer() -> None:
    with mesh(TcpComm, 3) as (ours, _, noisy):
        ours.timeout = 0.2
        stop = threading.Event()

        def chatter() -> None:
            while not stop.is_set():
                noisy.send(0, torch.zeros(1), "control/noise").wait()
                time.sleep(0.01)

        talking = threading.Thread(target=chatter)
        talking.start()
        with within(10), pytest.raises(PeerLost, match=r"worker 1 was silent for .* while worker 0"):
            ours.recv(1, torch.zeros(1), "control/x").wait()
        stop.set()
        talking.join()


@pytest.mark.parametrize(("numel", "here", "looks"), [(2**20, True, True), (2**20, False, False), (10, False, True)])
def test_for_a_long_message_over_a_network_a_worker_sleeps_at_once(numel: int, here: bool, looks: bool) -> None:
    """Looking again and again would cost time in which others compute."""
    with mesh(TcpComm, 2) as (ours, theirs):
        ours._links[1].here = here
        looked = []
        ours._give_way = lambda: looked.append(1) is None  # type: ignore[method-assign]
        tensor = torch.zeros(numel)
        late = threading.Timer(0.1, lambda: theirs.send(0, torch.ones(numel), "control/x").wait())
        late.start()
        ours.recv(1, tensor, "control/x").wait()
        late.join()
        assert tensor.eq(1).all()
        assert bool(looked) == looks


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_slow_reader_is_not_silent(encrypted: bool, tmp_path: Path) -> None:
    """A peer that keeps taking bytes lives, although it says nothing: the send may take longer than the timeout."""
    with mesh(TcpComm, 2, tls=make_tls(tmp_path) if encrypted else None) as (ours, theirs):
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
    with mesh(TcpComm, 2) as (ours, theirs):
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
    with mesh(TcpComm, 2) as (ours, theirs):
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
    with mesh(TcpComm, 2) as (ours, theirs):
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
    with mesh(TcpComm, 2) as (ours, _):
        ours.send(1, torch.zeros(1), "plumless")
        with pytest.raises(ValueError, match="tag 'buckeroo' collides"):
            ours.send(1, torch.zeros(1), "buckeroo")


def test_only_contiguous_tensors_travel() -> None:
    with mesh(TcpComm, 2) as (ours, _):
        for call in (ours.send, ours.recv):
            with pytest.raises(ValueError, match="only contiguous tensors"):
                call(1, torch.zeros(4, 4).t()[1:], "control/x")


def test_tls_encrypts_every_connection(tmp_path: Path) -> None:
    with mesh(TcpComm, 3, tls=make_tls(tmp_path)) as comms:
        for comm in comms:
            for link in comm._links.values():
                assert isinstance(link.connection, ssl.SSLSocket)
                assert link.connection.version() == "TLSv1.3"


def test_secrets_are_long_and_new() -> None:
    assert len(new_secret()) == 32
    assert new_secret() != new_secret()
