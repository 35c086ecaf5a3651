"""Our own wire: non-blocking TCP sockets between all workers, straight from and into tensor memory.

A frame is a header (tag, length; 16 bytes) and the tensor's bytes. One poll loop, run by whoever waits, moves every
send and receive of this comm at once; there is no thread of its own, so no hand-over between threads. A message nobody
asked for yet is put aside, one that comes after its deadline is thrown away. A connection that ends without a goodbye
means a dead peer and ends every wait at once; a peer that stays silent ends it after `timeout` seconds.
CUDA tensors are staged through host memory.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import ssl
import struct
import termios
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import Tensor

from tutti.comm.base import LOST, Clock, Comm, Lost, Message, Mismatch, PeerLost, Pending
from tutti.comm.handshake import Access, build_mesh

_HEADER = struct.Struct("<QQ")
_BYE = 2**64 - 1
_CLOSING_SECONDS = 2.0
_TURNS = 20  # polls without sleeping
_WAKE_BYTES = 2**20  # of a long message, wake up for this many at a time
_give_way = getattr(os, "sched_yield", lambda: None)
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TcpComm(Comm):
    """One worker's end; see the module."""

    wire = "tcp"

    def __init__(
        self, rank: int, size: int, store: dist.Store, access: Access, clock: Clock | None = None, mesh: str = "main"
    ) -> None:
        self.rank, self.size, self.timeout = rank, size, access.timeout
        self.clock = clock or Clock()
        self._store, self._access, self._mesh = store, access, mesh
        self._codes: dict[str, int] = {}
        self._native: Comm | None = None
        self._forks: list[TcpComm] = []
        self._poller = select.poll()
        self._links: dict[int, _Link] = {}
        self._by_fd: dict[int, _Link] = {}
        for peer, connection in build_mesh(rank, size, store, mesh, access, self.clock).items():
            link = _Link(peer, connection)
            self._links[peer] = self._by_fd[link.fd] = link
            self._poller.register(link.fd, select.POLLIN)

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        link = self._links[peer]
        if not tensor.is_cpu:
            tensor = tensor.cpu()
        send = _Send(self, link, tensor, self._code(tag))
        if link.closed:
            raise self._left(link)
        link.outbox.append(send)
        if len(link.outbox) == 1:
            self._write(link)
        return send

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        link = self._links[peer]
        receive = _Receive(self, link, tensor, self._code(tag), tag)
        aside = link.aside.get(receive.code)
        if aside:
            receive.deliver(aside.popleft())
        else:
            link.posted.append(receive)
        return receive

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        pending = [self.recv(peer, tensor, tag) for peer, tensor in recvs]
        pending += [self.send(peer, tensor, tag) for peer, tensor in sends]
        for each in pending:
            each.wait()

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        code = self._code(tag)
        links = [self._links[peer] for peer in sources]
        begun = self.clock.now()
        while True:
            for link in links:
                aside = link.aside.get(code)
                if aside:
                    receive = _Receive(self, link, tensor, code, tag)
                    receive.deliver(aside.popleft())
                    receive.wait()
                    return link.peer
            if all(link.closed for link in links):
                raise PeerLost(f"workers {list(sources)} have all left while worker {self.rank} waited for one of them")
            left = max(begun, *(link.heard for link in links)) + self.timeout - self.clock.now()
            if left <= 0 and not self._stirs(links):
                raise PeerLost(f"none of {list(sources)} answered worker {self.rank} within {self.timeout:g} s")
            self._progress(max(left, 0))

    def fork(self, name: str) -> TcpComm:
        mesh = f"{self._mesh}/{name}-{len(self._forks)}"  # a name may come again, and its first mesh is still published
        fork = TcpComm(self.rank, self.size, self._store, self._access, self.clock, mesh)
        self._forks.append(fork)
        return fork

    @property
    def native(self) -> Comm:
        if self._native is None:
            from tutti.comm.torch import TorchComm

            self._native = TorchComm.join(self.rank, self.size, self._store, self.timeout, self.clock)
        return self._native

    def close(self) -> None:
        for fork in self._forks:
            fork.close()
        if self._native is not None:
            self._native.close()
            self._native = None
        links, limit = self._links.values(), self.clock.now() + _CLOSING_SECONDS
        for link in links:
            if not link.closed:
                link.outbox.append(_Send(self, link, torch.empty(0), _BYE))
                self._write(link)
        while any(link.unsent() for link in links) and self.clock.now() < limit:
            with suppress(PeerLost):
                self._progress(0.001)
        for link in links:
            link.connection.close()
        self._links, self._by_fd = {}, {}

    # --- the poll loop -----------------------------------------------------------------------------------------------

    def drive(self, pending: _Send | _Receive, deadline: float | None) -> bool:
        """Move everything until this one is done; False when the caller's own deadline passed."""
        if self._take_turns(pending):
            return True
        begun = self.clock.now()
        link = pending.link
        while not pending.done:
            if link.closed:
                raise self._left(link)
            since = begun if deadline is not None else max(begun, link.heard)
            left = since + (self.timeout if deadline is None else deadline) - self.clock.now()
            if left <= 0 and deadline is not None:
                return False
            if left <= 0 and not self._stirs([link]):
                raise PeerLost(f"worker {link.peer} did not answer worker {self.rank} within {self.timeout:g} s")
            self._progress(max(left, 0))
        return True

    def _stirs(self, links: list[_Link]) -> bool:
        """A last look at peers that seem silent: something less than poll wakes up for may have come."""
        begun = self.clock.now()
        for link in links:
            link.wake_for(1)
        self._progress(0)
        return any(link.heard >= begun for link in links)

    def _take_turns(self, pending: _Send | _Receive) -> bool:
        """Look a few times and give way to others in between, before sleeping: waking up takes longer than a turn."""
        for _ in range(_TURNS):
            if pending.done:
                return True
            if not self._progress(0):
                _give_way()
        return pending.done

    def _progress(self, seconds: float) -> bool:
        """Move what can move, waiting so long for the first; False if nothing could."""
        events = self._poller.poll(seconds * 1000)
        for fd, event in events:
            link = self._by_fd[fd]
            if event & select.POLLOUT:
                link.heard = self.clock.now()
                self._write(link)
            if event & ~select.POLLOUT:
                self._read(link)
        return bool(events)

    def _write(self, link: _Link) -> None:
        outbox = link.outbox
        try:
            while outbox:
                if not link.put(outbox[0]):
                    break
                outbox.popleft().done = True
        except _WOULD_BLOCK:
            pass
        except OSError as error:
            link.error = error  # reading will tell whether a goodbye came before it
        if bool(outbox) != link.writing:
            link.writing = bool(outbox)
            self._poller.modify(link.fd, select.POLLIN | (select.POLLOUT if outbox else 0))

    def _read(self, link: _Link) -> None:
        """Read until the socket is empty, or until nobody waits for this peer any more."""
        link.heard = self.clock.now()
        try:
            while True:
                if link.body is None and not self._read_header(link):
                    return
                while link.body:
                    link.wake_for(len(link.body))
                    got = link.take(link.body)
                    if got == 0:
                        raise EOFError
                    link.body = link.body[got:]
                if link.body is not None:
                    link.wake_for(1)
                    link.finish()
                if not link.posted and not link.secret_bytes():
                    return
        except _WOULD_BLOCK:
            return
        except Mismatch:
            self._poller.unregister(link.fd)  # nobody knows where the next frame begins
            link.closed = True
            raise
        except EOFError:
            self._ended(link)
        except OSError as error:
            link.error = error
            self._ended(link)

    def _read_header(self, link: _Link) -> bool:
        """Read a header and aim what follows; False if it is not all there.

        The first receive posted gets its bytes in the same system call, and usually that is all of them.
        """
        guess = link.posted[0] if link.posted and link.plain and link.got == 0 and not link.pushed else None
        if guess is not None:
            got = link.connection.recvmsg_into([link.head, guess.view])[0]
            if got == guess.whole and link.head == guess.header and not link.late:
                link.posted.popleft().done = True
                return True
        else:
            got = link.take(link.head[link.got :])
        if got == 0:
            raise EOFError
        link.got += got
        if link.got < _HEADER.size:
            return False
        extra, link.got = link.got - _HEADER.size, 0
        code, length = _HEADER.unpack(link.head)
        if code == _BYE:
            link.said_goodbye = True
            return self._read_header(link)
        link.aim(code, length)
        if extra and guess is not None:
            if link.receive is guess:
                assert link.body is not None
                link.body = link.body[extra:]
            else:
                link.pushed = memoryview(bytes(guess.view[:extra]))
        return True

    # --- ends of connections -----------------------------------------------------------------------------------------

    def _ended(self, link: _Link) -> None:
        self._poller.unregister(link.fd)
        link.closed = True
        if not link.said_goodbye:
            reason = f" ({link.error.strerror or link.error})" if link.error else ""
            raise PeerLost(f"worker {link.peer} died: its connection to worker {self.rank} was cut{reason}")

    def _left(self, link: _Link) -> PeerLost:
        how = "had finished and left" if link.said_goodbye else "is dead"
        return PeerLost(f"worker {link.peer} {how} while worker {self.rank} waited for it")

    def _code(self, tag: str) -> int:
        """The number a tag has on the wire; names that would collide are refused."""
        code = self._codes.get(tag)
        if code is None:
            code = zlib.crc32(tag.encode())
            if code in self._codes.values():
                raise ValueError(f"tag '{tag}' collides with another one: rename it")
            self._codes[tag] = code
        return code


class _Send(Pending):
    __slots__ = ("comm", "done", "link", "parts", "tensor")

    def __init__(self, comm: TcpComm, link: _Link, tensor: Tensor, code: int) -> None:
        self.comm, self.link, self.tensor, self.done = comm, link, tensor, False
        view = _bytes_of(tensor)
        self.parts: list[memoryview | bytes] = [_HEADER.pack(code, len(view)), view]

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        if not self.done and not self.comm.drive(self, deadline):
            return LOST
        return self.tensor


class _Receive(Pending):
    __slots__ = ("code", "comm", "done", "header", "host", "link", "tag", "tensor", "view", "whole")

    def __init__(self, comm: TcpComm, link: _Link, tensor: Tensor, code: int, tag: str) -> None:
        self.comm, self.link, self.tensor, self.code, self.tag, self.done = comm, link, tensor, code, tag, False
        self.host = tensor if tensor.is_cpu else torch.empty_like(tensor, device="cpu")
        self.view = _bytes_of(self.host)
        self.header = _HEADER.pack(code, len(self.view))
        self.whole = _HEADER.size + len(self.view)  # the frame's length

    def check(self, length: int) -> None:
        if length != len(self.view):
            raise Mismatch(
                f"worker {self.link.peer} sent {length} bytes where worker {self.comm.rank} "
                f"expected {len(self.view)} ({self.tag})"
            )

    def deliver(self, data: bytearray) -> None:
        self.check(len(data))
        self.view[:] = data
        self.done = True

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        if not self.done and not self.comm.drive(self, deadline):
            self.link.give_up(self)
            return LOST
        if self.host is not self.tensor:
            self.tensor.copy_(self.host)
        return self.tensor


class _Link:
    """One connection: what waits to go out, what is coming in, what was put aside."""

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer, self.connection, self.fd = peer, connection, connection.fileno()
        self.plain = not isinstance(connection, ssl.SSLSocket)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.outbox: deque[_Send] = deque()
        self.writing = self.said_goodbye = self.closed = False
        self.error: OSError | None = None  # what a failed call said
        self.least = 1  # bytes that make the socket readable
        self.heard = 0.0  # when the peer last gave a sign of life
        self.posted: deque[_Receive] = deque()
        self.aside: dict[int, deque[bytearray]] = {}
        self.late: Counter[int] = Counter()
        self.head = memoryview(bytearray(_HEADER.size))
        self.got = 0  # bytes of the header that are there
        self.code = 0
        self.body: memoryview | None = None  # what is still to be filled of the frame being read
        self.receive: _Receive | None = None  # whose memory that is; else it is put aside, or thrown away
        self.stash: bytearray | None = None
        self.pushed: memoryview | None = None  # bytes read too far, to be taken before the socket's

    def put(self, send: _Send) -> bool:
        """Write what the socket takes; True when the frame is out."""
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
        least = min(nbytes, _WAKE_BYTES) if self.plain and nbytes > _WAKE_BYTES // 16 else 1
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

    def give_up(self, receive: _Receive) -> None:
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

    def _claim(self, code: int) -> _Receive | None:
        for receive in self.posted:
            if receive.code == code:
                self.posted.remove(receive)
                return receive
        return None


_array_kinds: dict[int, type[ctypes.Array[ctypes.c_ubyte]]] = {}  # by length; making one takes longer than using it


def _bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's own memory; whoever holds the view keeps the tensor."""
    if not tensor.is_contiguous():
        raise ValueError("only contiguous tensors can be sent or received in place")
    nbytes = tensor.nbytes
    if nbytes == 0:
        return memoryview(bytearray())
    kind = _array_kinds.get(nbytes)
    if kind is None:
        kind = _array_kinds[nbytes] = ctypes.c_ubyte * nbytes
    return memoryview(kind.from_address(tensor.data_ptr())).cast("B")


def new_secret() -> bytes:
    """A secret for one run."""
    return os.urandom(32)
