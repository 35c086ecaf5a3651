"""Our own wire: non-blocking TCP sockets between all workers, straight from and into tensor memory.

A frame is a header (tag, length; 16 bytes) and the tensor's bytes. One poll loop, run by whoever waits, moves every
send and receive of this comm at once; there is no thread of its own, so no hand-over between threads. A message nobody
asked for yet is put aside, one that comes after its deadline is thrown away. A connection that ends without a goodbye
means a dead peer and ends every wait at once; a peer that stays silent ends it after `timeout` seconds.
CUDA tensors are staged through host memory.
"""

from __future__ import annotations

import errno
import os
import select
import ssl
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import Comm, Message, Mismatch, PeerLost, Pending, Step
from tutti.comm.forked import leave_to_parent
from tutti.comm.handshake import Access, build_mesh
from tutti.comm.link import BYE, HEADER, HOST_SECONDS, Add, Link, Receive, Send
from tutti.comm.waits import Wait

_CLOSING_SECONDS = 2.0
_LOOK_SECONDS = 5.0  # between two looks at hosts that may be dead
_HOST_IS_OFF = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_TURN_SECONDS = 2e-4  # what a turn of another worker that is also waiting may take
_yield = getattr(os, "sched_yield", lambda: None)
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TcpComm(Comm):
    """One worker's end; see the module."""

    wire = "tcp"
    turns = 20  # looks without sleeping

    def __init__(
        self, rank: int, size: int, store: dist.Store, access: Access, clock: Clock | None = None, mesh: str = "main"
    ) -> None:
        self.rank, self.size, self.timeout = rank, size, access.timeout
        self.clock = clock or Clock()
        self._store, self._access, self._mesh = store, access, mesh
        self._codes: dict[str, int] = {}
        self._native: Comm | None = None
        self._bell = _Bell() if hasattr(os, "eventfd") else None
        self._interruption: BaseException | None = None
        self._awaited: Send | Receive | Wait | None = None
        self._process = os.getpid()
        self._forks: list[TcpComm] = []  # those that are open
        self._forked = 0
        self._parent: TcpComm | None = None
        self._poller = select.poll()
        self._links: dict[int, Link] = {}
        self._by_fd: dict[int, Link] = {}
        if self._bell is not None:
            self._poller.register(self._bell.fd, select.POLLIN)
        for peer, connection in build_mesh(rank, size, store, mesh, access, self.clock).items():
            link = Link(peer, connection)
            self._links[peer] = self._by_fd[link.fd] = link
            self._poller.register(link.fd, select.POLLIN)
        self._has_hosts = any(link.plain_tcp for link in self._links.values())  # apart from this one
        self._next_look = self.clock.now() + _LOOK_SECONDS
        leave_to_parent(self)

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        self._check()
        link = self._links[peer]
        if not tensor.is_cpu:
            tensor = tensor.cpu()
        send = Send(self, link, tensor, self._code(tag))
        if link.closed:
            self._awaited = send
            raise self._left(link)
        link.outbox.append(send)
        if len(link.outbox) == 1:
            self._write(link)
        return send

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        self._check()
        return self._post(Receive(self, self._links[peer], tensor, self._code(tag), tag))

    def _post(self, receive: Receive) -> Receive:
        link = receive.link
        aside = link.aside.get(receive.code)
        if aside:
            receive.deliver(aside.popleft())
        else:
            link.posted.append(receive)
        return receive

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        TcpComm.start_exchange(self, sends, recvs, tag)()

    def start_exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        sent = [self.send(peer, tensor, tag) for peer, tensor in sends]  # first: others may be waiting for it
        received = [self.recv(peer, tensor, tag) for peer, tensor in recvs]

        def complete() -> list[bool]:
            for each in (*received, *sent):
                each.wait()
            return [True] * len(received)

        return complete

    def accumulate(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        if len(recvs) != 1 or not recvs[0][1].is_cpu:
            super().accumulate(sends, recvs, tag)
            return
        sent = [self.send(peer, tensor, tag) for peer, tensor in sends]
        peer, tensor = recvs[0]
        received = self._post(Add(self, self._links[peer], tensor, self._code(tag), tag))
        for each in (received, *sent):
            each.wait()

    def stream(self, steps: Sequence[Step], lag: int, tag: str) -> None:
        if not all(message is None or message[1].is_cpu for step in steps for message in (step.out, step.into)):
            super().stream(steps, lag, tag)
            return
        code = self._code(tag)
        ahead = lag if any(step.then for step in steps) else len(steps)  # what `then` frees is needed again
        received: list[Receive | None] = []
        sent: list[Pending | None] = []
        for index in range(len(steps) + lag):
            received += [self._expect(step, code, tag) for step in steps[len(received) : index + ahead + 1]]
            if index >= lag:
                self._complete(steps[index - lag].then, received, sent, index - lag)
            if index < len(steps):
                out = steps[index].out
                sent.append(self.send(*out, tag) if out is not None else None)
        for each in sent:
            if each is not None:
                each.wait()

    def _complete(
        self, then: Callable[[], None] | None, received: list[Receive | None], sent: list[Pending | None], index: int
    ) -> None:
        """A step of a stream has come in, as all before it have; where something is to follow, they are also out."""
        receive = received[index] if index < len(received) else None
        if receive is not None:
            receive.wait()
        if then is not None:
            for place, each in enumerate(sent[: index + 1]):
                if each is not None:
                    each.wait()
                sent[place] = None
            then()

    def _expect(self, step: Step, code: int, tag: str) -> Receive | None:
        if step.into is None:
            return None
        peer, tensor = step.into
        return self._post((Add if step.adds else Receive)(self, self._links[peer], tensor, code, tag))

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        code = self._code(tag)
        links = [self._links[peer] for peer in sources]
        self._awaited = wait = Wait(self.rank, sources, tag)
        begun = self.clock.now()
        while True:
            for link in links:
                aside = link.aside.get(code)
                if aside:
                    receive = Receive(self, link, tensor, code, tag)
                    receive.deliver(aside.popleft())
                    receive.wait()
                    return link.peer
            if all(link.closed for link in links):
                raise wait.left()
            left = max(begun, *(link.heard for link in links)) + self.timeout - self.clock.now()
            if left <= 0 and not self._stirs(links):
                raise wait.silent(self.timeout)
            self._progress(max(left, 0))

    def bell(self, answer: Callable[[], None]) -> Callable[[], None]:
        if self._bell is None or self._bell.answer is not None:
            return super().bell(answer)
        self._bell.answer = answer
        return self._bell.ring

    def interrupt(self, error: BaseException) -> None:
        if self._interruption is None:
            self._interruption = error
        if self._native is not None:
            self._native.interrupt(error)
        if self._bell is not None:
            self._bell.ring()

    def abandon(self, error: BaseException) -> None:
        self._interruption, self._native = error, None
        for link in self._links.values():
            link.connection.close()
        self._links, self._by_fd = {}, {}
        if self._bell is not None:
            os.close(self._bell.fd)  # whatever thread of the parent holds its lock
            self._bell = None

    def _check(self) -> None:
        if self._interruption is not None:
            raise self._interruption.with_traceback(None)

    def fork(self, name: str) -> TcpComm:
        mesh = f"{self._mesh}/{name}-{self._forked}"  # a name may come again, and its first mesh is still published
        fork = type(self)(self.rank, self.size, self._store, self._access, self.clock, mesh)
        self._forked += 1
        self._forks.append(fork)
        fork._parent = self
        return fork

    def fork_small(self, name: str) -> TcpComm:
        mesh = f"{self._mesh}/{name}-{len(self._forks)}"
        fork = TcpComm(self.rank, self.size, self._store, self._access, self.clock, mesh)
        self._forks.append(fork)
        return fork

    @property
    def native(self) -> Comm:
        if self._native is None:
            from tutti.comm.torch import TorchComm

            self.barrier("control/native")  # a death is noticed here, not by a backend that waits to connect
            self._native = TorchComm.join(
                self.rank,
                self.size,
                dist.PrefixStore(f"{self._mesh}/native", self._store),  # of another comm it holds other addresses
                self.timeout,
                self.clock,
                members=self._access.members and self._access.members.of(f"{self._mesh}/native"),
            )
        return self._native

    def close(self) -> None:
        if self._process != os.getpid():
            return
        self._interruption = None  # an interrupted worker says goodbye, too
        for fork in list(self._forks):
            fork.close()
        if self._parent is not None:
            self._parent._forks.remove(self)
            self._parent = None
        if self._native is not None:
            self._native.close()
            self._native = None
        links, limit = self._links.values(), self.clock.now() + _CLOSING_SECONDS
        for link in links:
            if not link.closed:
                link.outbox.append(Send(self, link, torch.empty(0), BYE))
                self._write(link)
        while any(link.unsent() for link in links) and self.clock.now() < limit:
            with suppress(PeerLost):
                self._progress(0.001)
        for link in links:
            link.connection.close()
        self._links, self._by_fd = {}, {}
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    # --- the poll loop -----------------------------------------------------------------------------------------------

    def drive(self, pending: Send | Receive, deadline: float | None) -> bool:
        """Move everything until this one is done; False when the caller's own deadline passed."""
        self._awaited = pending
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
                raise self._wait().silent(self.timeout)
            self._progress(max(left, 0))
        return True

    def look(self) -> None:
        """Move what can be moved now."""
        self._progress(0)

    def _stirs(self, links: list[Link]) -> bool:
        """A last look at peers that seem silent: something less than poll wakes up for may have come."""
        begun = self.clock.now()
        for link in links:
            link.wake_for(1)
        self._progress(0)
        return any(link.heard >= begun for link in links)

    def _take_turns(self, pending: Send | Receive) -> bool:
        """Look a few times and give way to others in between, before sleeping: waking up takes longer than a turn, but
        not longer than a long message over a network."""
        for _ in range(0 if pending.long and not pending.link.here else self.turns):
            if pending.done:
                return True
            if not self._progress(0) and not self._give_way():
                break
        return pending.done

    def _give_way(self) -> bool:
        """Let others run; False if one that computes has taken the processor: then sleeping is better, since whoever
        is woken up comes before those who compute."""
        begun = self.clock.now()
        _yield()
        return self.clock.now() - begun < _TURN_SECONDS

    def _progress(self, seconds: float) -> bool:
        """Move what can move, waiting so long for the first; False if nothing could. Answer the bell."""
        self._check()
        if self._has_hosts:
            seconds = min(seconds, _LOOK_SECONDS)
        events = self._poller.poll(seconds * 1000)
        if self._has_hosts and not events and seconds > 0:
            self._look_for_dead_hosts()
        rung = False
        for fd, event in events:
            link = self._by_fd.get(fd)
            if link is None:
                rung = True
            else:
                self._serve(link, event)
        if rung:
            self._answer_bell()
        return bool(events)

    def _answer_bell(self) -> None:
        assert self._bell is not None
        self._bell.silence()
        self._check()
        if self._bell.answer is not None:
            try:
                self._bell.answer()
            except BaseException as error:
                self.interrupt(error)
                raise

    def _serve(self, link: Link, event: int) -> None:
        """What poll has found on a connection."""
        if event & select.POLLOUT:
            link.heard = self.clock.now()
            self._write(link)
        if event & ~select.POLLOUT:
            self._read(link)

    def _write(self, link: Link) -> None:
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

    def _read(self, link: Link) -> None:
        """Read until the socket is empty, or until nobody waits for this peer any more."""
        link.heard = self.clock.now()
        try:
            while True:
                if link.body is None and not self._read_header(link):
                    return
                while link.body:
                    link.wake_for(link.receive.to_come(link.body) if link.receive else len(link.body))
                    got = link.take(link.body)
                    if got == 0:
                        raise EOFError
                    link.body = link.receive.landed(link.body, got) if link.receive else link.body[got:]
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

    def _read_header(self, link: Link) -> bool:
        """Read a header and aim what follows; False if it is not all there.

        The first receive posted gets its bytes in the same system call, and usually that is all of them. Not where the
        peer writes by itself (`Comm.drafts`): a guess that is wrong would spoil what it has written there.
        """
        guess = link.posted[0] if link.posted and link.plain and link.got == 0 and not link.pushed else None
        if guess is not None and link.drafted and guess.host.data_ptr() in link.drafted:
            guess = None
        if guess is not None:
            got = link.connection.recvmsg_into([link.head, guess.view])[0]
            if got == guess.whole and link.head == guess.header and not link.late:
                guess.landed(guess.view, got - HEADER.size)
                link.posted.popleft().done = True
                return True
        else:
            got = link.take(link.head[link.got :])
        if got == 0:
            raise EOFError
        link.got += got
        if link.got < HEADER.size:
            return False
        extra, link.got = link.got - HEADER.size, 0
        code, length = HEADER.unpack(link.head)
        if code == BYE:
            link.said_goodbye = True
            return self._read_header(link)
        link.aim(code, length)
        if extra and guess is not None:
            if link.receive is guess:
                assert link.body is not None
                link.body = guess.landed(link.body, extra)
            else:
                link.pushed = memoryview(bytes(guess.view[:extra]))
        return True

    # --- ends of connections -----------------------------------------------------------------------------------------

    def _ended(self, link: Link) -> None:
        self._poller.unregister(link.fd)
        link.closed = True
        if not link.said_goodbye:
            reason = f" ({link.error.strerror or link.error})" if link.error else ""
            how = f": its connection to worker {self.rank} was cut{reason}"
            if link.error is not None and link.error.errno in _HOST_IS_OFF:
                how = f": its host has not answered worker {self.rank} for about {HOST_SECONDS} s"
            if self._awaited:
                raise self._wait().died(link.peer, how)
            raise PeerLost(f"worker {link.peer} died{how}", link.peer)

    def _left(self, link: Link) -> PeerLost:
        return self._wait().left() if link.said_goodbye else self._wait().dead(link.peer)

    def _wait(self) -> Wait:
        """What this worker waits for now, in words."""
        awaited = self._awaited
        if isinstance(awaited, Wait):
            return awaited
        assert awaited is not None
        tag = next((tag for tag, code in self._codes.items() if code == awaited.code), "control/goodbye")
        return Wait(self.rank, (awaited.link.peer,), tag, sends=isinstance(awaited, Send))

    def _look_for_dead_hosts(self) -> None:
        """Now and then, while nothing comes."""
        if self.clock.now() < self._next_look:
            return
        self._next_look = self.clock.now() + _LOOK_SECONDS
        for link in list(self._links.values()):
            if link.plain_tcp and link.seems_off():
                link.error = TimeoutError(errno.ETIMEDOUT, "no answer")
                self._ended(link)

    def _code(self, tag: str) -> int:
        """The number a tag has on the wire; names that would collide are refused."""
        code = self._codes.get(tag)
        if code is None:
            code = zlib.crc32(tag.encode())
            if code in self._codes.values():
                raise ValueError(f"tag '{tag}' collides with another one: rename it")
            self._codes[tag] = code
        return code


class _Bell:
    """See `Comm.bell` and `Comm.interrupt`."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.answer: Callable[[], None] | None = None
        self._lock = threading.Lock()  # a number that is closed may be another file's at once

    def ring(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        with self._lock:
            os.close(self.fd)
            self.fd = -1
