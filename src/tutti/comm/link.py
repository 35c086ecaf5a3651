"""One connection of our wire: what waits to go out, what is coming in, what was put aside; and the messages themselves.

A frame on the connection is a header (tag, length; 16 bytes) and the tensor's bytes.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import socket
import ssl
import struct
import termios
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tutti.comm.base import LOST, Lost, Mismatch, Pending

HEADER = struct.Struct("<QQ")
BYE = 2**64 - 1  # the tag of a goodbye
_LONG = 2**16  # bytes from which a message is long
_WAKE_BYTES = 2**20  # of a long message, wake up for this many at a time
_DEEP = 2**22  # bytes that the kernel keeps moving while this worker computes
_NEAR = 2e-3  # seconds there and back; over a longer way the kernel finds out by itself how much must be under way
HOST_SECONDS = 30  # without any answer from the peer's kernel after which its host counts as dead
_SCRATCH_BYTES = 2**19  # what is to be added lands here first and is added while it is still in the cache


class Driver(Protocol):
    """Whoever turns the poll loop (`tcp.TcpComm`)."""

    rank: int

    def drive(self, pending: Send | Receive, deadline: float | None) -> bool: ...


class Send(Pending):
    """A message on its way out."""

    __slots__ = ("code", "comm", "done", "link", "parts", "tensor")

    def __init__(self, comm: Driver, link: Link, tensor: Tensor, code: int) -> None:
        self.comm, self.link, self.tensor, self.code, self.done = comm, link, tensor, code, False
        view = bytes_of(tensor)
        self.parts: list[memoryview | bytes] = [HEADER.pack(code, len(view)), view]

    @property
    def long(self) -> bool:
        return self.tensor.nbytes > _LONG

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        if not self.done and not self.comm.drive(self, deadline):
            return LOST
        return self.tensor


class Receive(Pending):
    """A message somebody waits for."""

    __slots__ = ("code", "comm", "done", "header", "host", "link", "tag", "tensor", "view", "whole")

    def __init__(self, comm: Driver, link: Link, tensor: Tensor, code: int, tag: str) -> None:
        self.comm, self.link, self.tensor, self.code, self.tag, self.done = comm, link, tensor, code, tag, False
        self.host = tensor if tensor.is_cpu else torch.empty_like(tensor, device="cpu")
        self.view = bytes_of(self.host)
        self.header = HEADER.pack(code, len(self.view))
        self.whole = HEADER.size + len(self.view)  # the frame's length

    @property
    def long(self) -> bool:
        return self.whole > _LONG

    def check(self, length: int) -> None:
        if length != self.whole - HEADER.size:
            raise Mismatch(
                f"worker {self.link.peer} sent {length} bytes where worker {self.comm.rank} "
                f"expected {self.whole - HEADER.size} ({self.tag})"
            )

    def deliver(self, data: bytearray) -> None:
        self.check(len(data))
        self.view[:] = data
        self.done = True

    def to_come(self, body: memoryview) -> int:
        """Bytes that are still missing when this is what is to be filled."""
        return len(body)

    def landed(self, body: memoryview, got: int) -> memoryview:
        """So many bytes have come into the first part of this; returns what is to be filled next."""
        return body[got:]

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        if not self.done and not self.comm.drive(self, deadline):
            self.link.give_up(self)
            return LOST
        if self.host is not self.tensor:
            self.tensor.copy_(self.host)
        return self.tensor


class Add(Receive):
    """A message whose elements are added to the tensor's; `view` is the link's scratch."""

    __slots__ = ("left", "place")

    def __init__(self, comm: Driver, link: Link, tensor: Tensor, code: int, tag: str) -> None:
        self.comm, self.link, self.tensor, self.code, self.tag, self.done = comm, link, tensor, code, tag, False
        self.host = tensor
        self.place = 0  # elements that are added
        self.left = tensor.nbytes  # bytes that have not come
        self.header = HEADER.pack(code, self.left)
        self.whole = HEADER.size + self.left
        self.view = link.scratch(self.left)

    def deliver(self, data: bytearray) -> None:
        self.check(len(data))
        if data:
            self.tensor.add_(torch.frombuffer(data, dtype=self.tensor.dtype))
        self.done = True

    def to_come(self, body: memoryview) -> int:
        return self.left

    def add_rest(self, source: Tensor) -> None:
        """All bytes that have not come, from where they are."""
        self.tensor[self.place :].add_(source.view(self.tensor.dtype))
        self.left = 0

    def landed(self, body: memoryview, got: int) -> memoryview:
        """Add the whole elements; a part of one moves to the front and waits for the rest."""
        self.left -= got
        width = self.tensor.element_size()
        filled = len(self.view) - len(body) + got
        count = filled // width
        self.tensor[self.place : self.place + count].add_(self.link.landing[: count * width].view(self.tensor.dtype))
        self.place += count
        rest = filled - count * width
        self.view[:rest] = self.view[filled - rest : filled]
        self.view = self.view[: rest + self.left]
        return self.view[rest:]


class Link:
    """One connection: what waits to go out, what is coming in, what was put aside."""

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer, self.connection, self.fd = peer, connection, connection.fileno()
        self.plain = not isinstance(connection, ssl.SSLSocket)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.here = _is_here(connection)  # the peer has the same address
        self.far = not self.here  # as it seems so far
        self.plain_tcp = not self.here and hasattr(socket, "TCP_INFO")
        if not self.here:
            _probe_when_idle(connection)
        if self.far:
            self._look_again()
        self.outbox: deque[Send] = deque()
        self.writing = self.said_goodbye = self.closed = False
        self.error: OSError | None = None  # what a failed call said
        self.least = 1  # bytes that make the socket readable
        self.heard = 0.0  # when the peer last gave a sign of life
        self.posted: deque[Receive] = deque()
        self.drafted: set[int] = set()  # addresses here that the peer itself writes to, see `Comm.drafts`
        self.aside: dict[int, deque[bytearray]] = {}
        self.late: Counter[int] = Counter()
        self.head = memoryview(bytearray(HEADER.size))
        self.got = 0  # bytes of the header that are there
        self.code = 0
        self.body: memoryview | None = None  # what is still to be filled of the frame being read
        self.receive: Receive | None = None  # whose memory that is; else it is put aside, or thrown away
        self.stash: bytearray | None = None
        self.landing = torch.empty(0, dtype=torch.uint8)  # for what is to be added, see `Add`
        self.pushed: memoryview | None = None  # bytes read too far, to be taken before the socket's

    def _look_again(self) -> None:
        """A way that seemed long may only have been slow to answer at first, on a busy machine."""
        if _round_trip(self.connection) < _NEAR:
            self.far = False
            _deepen(self.connection)
            _share_evenly(self.connection)

    def seems_off(self) -> bool:
        """Whether what was sent is not acknowledged, nor what asks for room, for as long as keep-alive takes: the
        peer's host is off, or the link to it is down."""
        return not self.closed and self.plain_tcp and _is_unanswered(self.connection)

    def scratch(self, nbytes: int) -> memoryview:
        """Memory for the bytes of one message, or for a part of a long one."""
        if self.landing.numel() < min(nbytes, _SCRATCH_BYTES):
            self.landing = torch.empty(_SCRATCH_BYTES, dtype=torch.uint8)
        return bytes_of(self.landing)[:nbytes]

    def put(self, send: Send) -> bool:
        """Write what the socket takes; True when the frame is out."""
        if self.far:
            self._look_again()
        parts = send.parts
        sent = self.connection.sendmsg(parts) if self.plain else self.connection.send(parts[0] or parts[1])
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if parts:
            parts[0] = memoryview(parts[0])[sent:]
        return not parts

    def take(self, view: memoryview) -> int:
        if self.pushed is None:
            return self.connection.recv_into(view)
        count = min(len(view), len(self.pushed))
        view[:count] = self.pushed[:count]
        self.pushed = self.pushed[count:] if count < len(self.pushed) else None
        return count

    def wake_for(self, nbytes: int) -> None:
        """Let poll sleep until so much of a long message is there: fewer turns, fewer switches between workers."""
        least = min(nbytes, _WAKE_BYTES) if self.plain and nbytes > _LONG else 1
        if least != self.least:
            self.least = least
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def secret_bytes(self) -> bool:
        """Bytes that poll cannot see: read too far, or decrypted and not fetched."""
        return self.pushed is not None or (isinstance(self.connection, ssl.SSLSocket) and self.connection.pending() > 0)

    def unsent(self) -> bool:
        """Whether something waits here or in the kernel, which drops it if the peer sends to a closed socket."""
        if self.closed:
            return False
        return bool(self.outbox) or fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(4)) != bytes(4)

    def aim(self, code: int, length: int) -> None:
        """A frame begins: into the memory of its receive, aside, or away."""
        if self.far:
            self._look_again()
        self.code, self.receive, self.stash = code, None, None
        if self.late[code] > 0:
            self.late -= Counter([code])  # an empty counter again when it was the last
            self.body = memoryview(bytearray(length))
            return
        self.receive = self._claim(code)
        if self.receive is not None:
            self.receive.check(length)
            self.body = self.receive.view
        else:
            self.stash = bytearray(length)
            self.body = memoryview(self.stash)

    def finish(self) -> None:
        """The frame is complete."""
        if self.receive is not None:
            self.receive.done = True
        elif self.stash is not None:
            receive = self._claim(self.code)
            if receive is not None:
                receive.deliver(self.stash)
            else:
                self.aside.setdefault(self.code, deque()).append(self.stash)
        self.body = self.receive = self.stash = None

    def give_up(self, receive: Receive) -> None:
        """The deadline passed: what has begun to arrive goes nowhere, what has not will be thrown away."""
        if receive is self.receive:
            assert self.body is not None
            self.body, self.receive = memoryview(bytearray(len(self.body))), None
            return
        self.posted.remove(receive)
        if self.stash is not None and self.code == receive.code:
            self.stash = None
        else:
            self.late[receive.code] += 1

    def _claim(self, code: int) -> Receive | None:
        for receive in self.posted:
            if receive.code == code:
                self.posted.remove(receive)
                return receive
        return None


def _is_here(connection: socket.socket) -> bool:
    return bool(connection.getsockname()[0] == connection.getpeername()[0])


def _round_trip(connection: socket.socket) -> float:
    """Seconds, the least that the kernel has seen so far; endless where it does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return math.inf
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    return float(struct.unpack_from("I", info, _RTT_AT)[0]) * 1e-6 if len(info) == _RTT_AT + 4 else math.inf


def _probe_when_idle(connection: socket.socket) -> None:
    """Keep-alive: a host that is off is noticed within `HOST_SECONDS` by those who wait for a message of it.

    Not TCP_USER_TIMEOUT, which also ends the connection to a healthy worker that computes for so long while it has
    no room for more; `seems_off` looks after what has been sent.
    """
    options = {
        "TCP_KEEPIDLE": max(1, HOST_SECONDS // 3),
        "TCP_KEEPINTVL": max(1, HOST_SECONDS // 6),
        "TCP_KEEPCNT": 4,
    }
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_unanswered(connection: socket.socket) -> bool:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    if len(info) != _RTT_AT + 4:
        return False
    retransmitted, probes = info[2], info[3]
    (unacknowledged,), (silence,) = struct.unpack_from("I", info, 24), struct.unpack_from("I", info, 56)  # silence: ms
    return silence >= HOST_SECONDS * 1000 and (probes >= 2 or (unacknowledged > 0 and retransmitted >= 3))


def _deepen(connection: socket.socket) -> None:
    """Nobody turns the poll loop while a worker computes, and what the kernel would have under way over so short a way
    is over at once. Where the system allows less than this it is left alone, since what is asked for once no longer
    grows by itself."""
    for name, option in (("wmem_max", socket.SO_SNDBUF), ("rmem_max", socket.SO_RCVBUF)):
        with suppress(OSError, ValueError):
            if int(Path(f"/proc/sys/net/core/{name}").read_text()) >= _DEEP:
                connection.setsockopt(socket.SOL_SOCKET, option, _DEEP)
                if option == socket.SO_RCVBUF:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, _DEEP)


def _share_evenly(connection: socket.socket) -> None:
    """Workers talk to several others at once, and in both directions. Over a short way BBR, which some systems prefer,
    gives its connections on one link very different shares: messages along a chain of four workers took 1.2 times as
    long as with cubic, which every Linux has."""
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


_RTT_AT = 148  # bytes, in the kernel's tcp_info: the least so far
_views: dict[tuple[int, int], memoryview] = {}  # by address and length: making one takes longer than using it
_MOST_VIEWS = 4096


def bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's own memory, for as long as the tensor is there."""
    nbytes = tensor.nbytes
    if not tensor.is_contiguous():
        raise ValueError("only contiguous tensors can be sent or received in place")
    if nbytes == 0:
        return _NO_BYTES
    return memory_at(tensor.data_ptr(), nbytes)


def memory_at(address: int, nbytes: int) -> memoryview:
    """For as long as somebody keeps it."""
    key = (address, nbytes)
    view = _views.get(key)
    if view is None:
        if len(_views) >= _MOST_VIEWS:
            _views.clear()
        view = _views[key] = memoryview((ctypes.c_ubyte * nbytes).from_address(key[0])).cast("B")
    return view


_NO_BYTES = memoryview(bytearray())
