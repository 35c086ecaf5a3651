"""Our wire between workers of one machine: memory that both have mapped instead of sockets; sockets to all others.

Each pair shares two pipes, one per direction: a ring of bytes with the writer's and the reader's position in front. The
frames in it are those of the tcp wire, so that everything above the connection is the same. A worker that finds nothing
to do gives way a few times, then says so in the pipe and sleeps on the sockets, where whoever moves the pipe next wakes
it by a byte. The sockets also tell of a peer's death.

Long messages from memory that `zeros` has given out (see window.py) do not go through the ring: the writer lends them,
the reader takes them from where they are, and a send is complete when its loan is back.

The memory of the pipes is a file in /dev/shm without a name as soon as both ends have it, so that nothing stays behind.
Positions are published behind the bytes they speak of; that order is kept by x86 processors only, and elsewhere, or
where a worker is in another network namespace, container or machine, or with TLS, the sockets do all the work.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import Comm, Message, Step
from tutti.comm.handshake import Access
from tutti.comm.link import HEADER, Add, Link, bytes_of
from tutti.comm.tcp import TcpComm
from tutti.comm.window import Outlook, Place, windows
from tutti.machine import name_host

_FOLDER = Path("/dev/shm")
_LINE = 64  # bytes; what two processors hand each other at a time
_POSITIONS = 5 * _LINE  # bytes before the ring
_ROOM = 2**23  # bytes of all the pipes to one worker's peers, more or less
_LEAST_ROOM = 2**18  # bytes of one pipe
_SHORT = 2**19  # bytes of a message that goes at once
_LONG = 2**15  # bytes from which a copy is worth letting other threads run
_NAP = 0.05  # seconds; the longest sleep between two looks at the memory, should a wake-up call get lost
_LOOKS = 32  # at the memory, for one at the sockets


class SharedComm(TcpComm):
    """One worker's end; see the module."""

    wire = "shared"
    turns = 100

    def __init__(
        self, rank: int, size: int, store: dist.Store, access: Access, clock: Clock | None = None, mesh: str = "main"
    ) -> None:
        super().__init__(rank, size, store, access, clock, mesh)
        self._near: list[tuple[Link, _Pipes]] = []
        self._all_near, self._looks = False, 0
        machine = _find_machine() if access.tls is None else ""
        self._near = self._map_memory(self._find_near(machine))
        self._all_near = len(self._near) == len(self._links)
        self._show_windows()
        self.wire = "shared" if self._near or size == 1 else "tcp"
        self._pipes = {link.peer: pipes for link, pipes in self._near}
        self.barrier()  # nobody says goodbye in memory that another has not looked at yet

    def _find_near(self, machine: str) -> list[int]:
        """The peers on the same machine; every worker comes here, also one that is alone on its own."""
        rows = {peer: torch.zeros(128, dtype=torch.uint8) for peer in self._links}
        mine = _to_tensor(machine)
        self.exchange([(peer, mine) for peer in rows], list(rows.items()), "control/machine")
        return [peer for peer in sorted(rows) if machine and _to_text(rows[peer]) == machine]

    def _map_memory(self, peers: list[int]) -> list[tuple[Link, _Pipes]]:
        """The lower rank of a pair makes the file; a pair that cannot map it stays with its sockets."""
        room = max(_LEAST_ROOM, _ROOM // self.size) // _LINE * _LINE
        offers = {peer: _make_file(2 * (_POSITIONS + room)) for peer in peers if peer > self.rank}
        names = {peer: torch.zeros(128, dtype=torch.uint8) for peer in peers if peer < self.rank}
        answers = {peer: torch.zeros(1) for peer in offers}
        try:
            sends = [(peer, _to_tensor(name)) for peer, (name, _) in offers.items()]
            self.exchange(sends, list(names.items()), "control/memory")
            taken = {peer: _open_file(_to_text(name)) for peer, name in names.items()}
            sends = [(peer, torch.full((1,), float(memory is not None))) for peer, memory in taken.items()]
            self.exchange(sends, list(answers.items()), "control/memory")
        finally:
            for name in (name for name, _ in offers.values() if name):
                Path(name).unlink(missing_ok=True)
        made = {peer: memory for peer, (_, memory) in offers.items() if answers[peer].item()}
        return [self._join(peer, memory) for peer, memory in sorted({**made, **taken}.items()) if memory is not None]

    def _join(self, peer: int, memory: mmap.mmap) -> tuple[Link, _Pipes]:
        link = self._links[peer]
        link.connection = pipes = _Pipes(link, memory, first=self.rank < peer)  # type: ignore[assignment]
        return link, pipes

    def _show_windows(self) -> None:
        """Everybody looks at every near peer's windows, and lends only to those that could see his own."""
        mine = torch.tensor([os.getpid(), -1, 0])
        with suppress(OSError):
            mine = torch.tensor([os.getpid(), windows().fd, windows().number])
        theirs = {pipes.peer: torch.zeros(3, dtype=torch.int64) for _, pipes in self._near}
        answers = {peer: torch.zeros(1) for peer in theirs}
        TcpComm.exchange(self, [(peer, mine) for peer in theirs], list(theirs.items()), "control/memory")
        could = {pipes.peer: pipes.look_out(*theirs[pipes.peer].tolist()) for _, pipes in self._near}
        sends = [(peer, torch.full((1,), float(sees))) for peer, sees in could.items()]
        TcpComm.exchange(self, sends, list(answers.items()), "control/memory")
        for _, pipes in self._near:
            pipes.lends = bool(answers[pipes.peer].item())

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type == "cpu" and count * dtype.itemsize > _SHORT and any(pipes.lends for _, pipes in self._near):
            with suppress(OSError):
                return windows().zeros(count, dtype)
        return super().zeros(count, dtype, device)

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        """Short messages straight into and out of the memory, where nothing else is under way."""
        if not self._all_near:
            super().exchange(sends, recvs, tag)
            return
        code, pipes = self._code(tag), self._pipes
        sent = [self.send(peer, tensor, tag) for peer, tensor in sends if not pipes[peer].post(code, tensor)]
        missing = self._fetch(code, recvs)
        turns = 0 if sent else self.turns
        while missing and turns:
            turns = turns - 1 if self._give_way() else 0
            missing = self._fetch(code, missing)
        received = [self.recv(peer, tensor, tag) for peer, tensor in missing]
        for each in (*received, *sent):
            each.wait()

    def start_exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        if all(tensor.nbytes <= _SHORT for _, tensor in (*sends, *recvs)):
            return Comm.start_exchange(self, sends, recvs, tag)
        return super().start_exchange(sends, recvs, tag)

    def _fetch(self, code: int, messages: Sequence[Message]) -> list[Message]:
        """Take those that are there and return the others; of one peer's none before those that come first."""
        missing: list[Message] = []
        for peer, tensor in messages:
            if any(peer == other for other, _ in missing) or not self._pipes[peer].fetch(code, tensor):
                missing.append((peer, tensor))
        return missing

    def accumulate(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        if all(tensor.nbytes <= _SHORT for _, tensor in recvs):
            Comm.accumulate(self, sends, recvs, tag)
        else:
            super().accumulate(sends, recvs, tag)

    def stream(self, steps: Sequence[Step], lag: int, tag: str) -> None:
        if all(step.into is None or step.into[1].nbytes <= _SHORT for step in steps):
            Comm.stream(self, steps, lag, tag)
        else:
            super().stream(steps, lag, tag)

    def _read_header(self, link: Link) -> bool:
        """What is left of a sum on loan is added from where it is."""
        if not super()._read_header(link):
            return False
        receive, pipes = link.receive, link.connection
        if isinstance(receive, Add) and isinstance(pipes, _Pipes) and link.body is not None:
            source = pipes.borrow(receive.left) if len(link.body) == len(receive.view) else None  # no half elements
            if source is not None and source.data_ptr() % receive.tensor.element_size() == 0:
                receive.add_rest(source)
                pipes.give_back()
                link.body = link.body[:0]
        return True

    def _write(self, link: Link) -> None:
        if not isinstance(link.connection, _Pipes):
            super()._write(link)
            return
        outbox = link.outbox
        with suppress(BlockingIOError):  # no room
            while outbox and link.put(outbox[0]):
                outbox.popleft().done = True

    def _progress(self, seconds: float) -> bool:
        moved = self._look()
        self._looks += 1
        if not self._all_near or self._looks % _LOOKS == 0:
            moved = self._poll(0) or moved
        if moved or seconds == 0:
            return moved
        for _, pipes in self._near:
            pipes.sleep()
        return self._look() or self._poll(min(seconds, _NAP)) or self._look()

    def _look(self) -> bool:
        """Move what can move in the memory."""
        moved = False
        for link, pipes in self._near:
            if pipes.readable() and not link.closed:
                moved = True
                self._read(link)
            if link.outbox and pipes.writable():
                moved = True
                link.heard = self.clock.now()
                self._write(link)
        return moved

    def _poll(self, seconds: float) -> bool:
        """The sockets: messages of those far away, wake-up calls, ends of connections."""
        moved = False
        for fd, event in self._poller.poll(seconds * 1000):
            moved = True
            link = self._by_fd[fd]
            if isinstance(link.connection, _Pipes):
                if link.connection.answer():
                    self._read(link)
                continue
            self._serve(link, event)
        return moved


class _Pipes:
    """What stands in a link for its socket: a pipe to the peer and one from it."""

    def __init__(self, link: Link, memory: mmap.mmap, first: bool) -> None:
        self._link, self._socket, self.peer = link, link.connection, link.peer
        self._memory = memory
        whole = memoryview(memory)
        half = len(whole) // 2
        parts = whole[:half], whole[half:]
        self._out, self._in = (_Pipe(parts[0]), _Pipe(parts[1])) if first else (_Pipe(parts[1]), _Pipe(parts[0]))
        self._ended = False
        self.lends = False  # to a peer that can see this worker's windows
        self._lent = False  # what is to be sent next

    def look_out(self, process: int, fd: int, number: int) -> bool:
        """Whether the peer's windows can be seen."""
        with suppress(OSError):
            self._in.outlook = Outlook(process, fd, number)
        return self._in.outlook is not None

    def readable(self) -> bool:
        return self._ended or self._in.filled() > 0

    def writable(self) -> bool:
        return not self._out.on_loan() and self._out.room() > 0

    def post(self, code: int, tensor: Tensor) -> bool:
        """A whole short message at once; False where that cannot be."""
        if self._link.outbox or self._link.closed or not self._out.post(code, tensor):
            return False
        self._wake(self._out.reader_sleeps)
        return True

    def fetch(self, code: int, tensor: Tensor) -> bool:
        """A whole short message at once; False where it is not there, or not the next one."""
        link = self._link
        if link.posted or link.body is not None or link.got or link.pushed or link.late or link.aside.get(code):
            return False
        if not self._in.fetch(code, tensor):
            return False
        self._wake(self._in.writer_sleeps)
        return True

    def sendmsg(self, parts: list[Any]) -> int:
        """Bytes that have passed; of what was lent none before all of it is back."""
        if self._out.on_loan():
            raise BlockingIOError
        *before, last = parts
        if self._lent:
            self._lent = False
            return len(last)
        place = windows().find(_address(last), len(last)) if self.lends and len(last) > _SHORT else None
        sent = self._out.put(parts if place is None else before)
        if place is not None and sent == sum(map(len, before)):
            self._out.lend(place, len(last))
            self._lent = True
        elif sent == 0 and any(len(part) for part in parts):
            raise BlockingIOError
        self._wake(self._out.reader_sleeps)
        return sent

    def recvmsg_into(self, views: list[memoryview]) -> tuple[int]:
        got = 0
        for view in views:
            taken = self._in.take(view)
            got += taken
            if taken < len(view):
                break
        if got == 0:
            self._empty()
        if not self._in.on_loan():
            self._wake(self._in.writer_sleeps)
        return (got,)

    def recv_into(self, view: memoryview) -> int:
        return self.recvmsg_into([view])[0]

    def borrow(self, nbytes: int) -> Tensor | None:
        """What is on loan, if that is just what is left of it."""
        return self._in.borrow(nbytes)

    def give_back(self) -> None:
        self._in.give_back()
        self._wake(self._in.writer_sleeps)

    def _empty(self) -> None:
        if not self._ended:
            raise BlockingIOError

    def sleep(self) -> None:
        """Say that a byte on the socket is needed to wake this worker."""
        self._in.reader_sleeps[0] = 1
        self._out.writer_sleeps[0] = 1

    def _wake(self, asleep: memoryview) -> None:
        if asleep[0]:
            asleep[0] = 0
            with suppress(OSError):
                self._socket.send(b"\0")

    def answer(self) -> bool:
        """Take the wake-up calls away; True when the connection has ended."""
        try:
            self._ended = not self._socket.recv(4096)
        except BlockingIOError:
            pass
        except OSError:
            self._ended = True
        return self._ended

    def setsockopt(self, *_: Any) -> None:
        """The memory has none."""

    def close(self) -> None:
        self._socket.close()
        if self._in.outlook is not None:
            self._in.outlook.close()


class _Pipe:
    """One direction: positions that only grow, who sleeps, and a ring of bytes. What is on loan has positions too, but
    no place in the ring, and nothing is written behind it until it is back."""

    outlook: Outlook | None = None  # on the writer's windows

    def __init__(self, memory: memoryview) -> None:
        numbers = memory[:_POSITIONS].cast("Q")
        step = _LINE // 8
        self._written, self._read = numbers[0:1], numbers[step : step + 1]
        self.reader_sleeps, self.writer_sleeps = numbers[2 * step : 2 * step + 1], numbers[3 * step : 3 * step + 1]
        self._loan = numbers[4 * step : 4 * step + 5]  # from where to where, and its place in the writer's windows
        self._ring = memory[_POSITIONS:]
        self._capacity = len(self._ring)

    def filled(self) -> int:
        return self._written[0] - self._read[0]

    def room(self) -> int:
        return self._capacity - self.filled()

    def put(self, parts: list[Any]) -> int:
        """As much of these as there is room for; returns how many bytes."""
        at = self._written[0]
        room = self._capacity - (at - self._read[0])
        begun = at
        for part in parts:
            length = min(len(part), room)
            self._copy_in(at % self._capacity, part, length)
            at += length
            room -= length
        self._written[0] = at
        return at - begun

    def lend(self, place: Place, nbytes: int) -> None:
        at = self._written[0]
        for index, value in enumerate((at, at + nbytes, *place)):
            self._loan[index] = value
        self._written[0] = at + nbytes

    def on_loan(self) -> bool:
        return self._read[0] < self._loan[1]

    def borrow(self, nbytes: int) -> Tensor | None:
        """The next bytes, if they are the last of a loan."""
        at, written = self._read[0], self._written[0]  # looked at before the loan, which was there before
        begin, end, *place = self._loan
        if self.outlook is None or not begin <= at < end or end > written or end - at != nbytes:
            return None
        return self.outlook.see(Place(*place), end - begin)[at - begin :]

    def give_back(self) -> None:
        self._read[0] = self._loan[1]

    def take(self, view: memoryview) -> int:
        at = self._read[0]
        length = min(len(view), self._written[0] - at)  # looked at before the loan, which was there before
        begin, end, *where = self._loan
        if begin <= at < end and length:
            assert self.outlook is not None
            length = min(length, end - at)
            source = self.outlook.see(Place(*where), end - begin)[at - begin : at - begin + length]
            ctypes.memmove(_address(view), source.data_ptr(), length)
            self._read[0] = at + length
            return length
        if at < begin:
            length = min(length, begin - at)
        if length:
            place = at % self._capacity
            first = min(length, self._capacity - place)
            _copy(view[:first], self._ring[place : place + first])
            if first < length:
                _copy(view[first:length], self._ring[: length - first])
            self._read[0] = at + length
        return length

    def post(self, code: int, tensor: Tensor) -> bool:
        nbytes, at = tensor.nbytes, self._written[0]
        place, end = at % self._capacity, at + HEADER.size + nbytes
        if nbytes > _SHORT or end - self._read[0] > self._capacity or place + end - at > self._capacity:
            return False
        if not tensor.is_cpu:
            return False
        HEADER.pack_into(self._ring, place, code, nbytes)
        _copy(self._ring[place + HEADER.size : place + end - at], bytes_of(tensor))
        self._written[0] = end
        return True

    def fetch(self, code: int, tensor: Tensor) -> bool:
        at = self._read[0]
        if self._written[0] == at:
            return False
        nbytes = tensor.nbytes
        place, end = at % self._capacity, at + HEADER.size + nbytes
        if nbytes > _SHORT or end > self._written[0] or place + end - at > self._capacity:
            return False
        if HEADER.unpack_from(self._ring, place) != (code, nbytes) or not tensor.is_cpu:
            return False
        _copy(bytes_of(tensor), self._ring[place + HEADER.size : place + end - at])
        self._read[0] = end
        return True

    def _copy_in(self, place: int, part: Any, length: int) -> None:
        first = min(length, self._capacity - place)
        _copy(self._ring[place : place + first], part[:first])
        if first < length:
            _copy(self._ring[: length - first], part[first:length])


def _copy(target: memoryview, source: Any) -> None:
    if len(target) < _LONG:
        target[:] = source
    else:
        ctypes.memmove(_address(target), _address(source), len(target))


def _address(view: Any) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))


# --- where the memory comes from -------------------------------------------------------------------------------------


def _find_machine() -> str:
    """The same text on every worker that may share memory with this one; empty where none may."""
    if platform.machine() not in ("x86_64", "AMD64") or not _FOLDER.is_dir():
        return ""
    return f"{name_host()} {os.getuid()}"


def _make_file(nbytes: int) -> tuple[str, mmap.mmap | None]:
    """A new file that only this user can open, mapped; no name where there is no room for it."""
    path = _FOLDER / f"tutti-{os.urandom(16).hex()}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, nbytes)  # now, or a full /dev/shm would end the worker at the first touch
            return str(path), mmap.mmap(fd, 0)
        finally:
            os.close(fd)
    except OSError:
        path.unlink(missing_ok=True)
        return "", None


def _open_file(path: str) -> mmap.mmap | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            return mmap.mmap(fd, 0)
        finally:
            os.close(fd)
    except OSError:
        return None


def _to_tensor(text: str) -> Tensor:
    return torch.tensor(list(struct.pack("128s", text.encode())), dtype=torch.uint8)


def _to_text(tensor: Tensor) -> str:
    return bytes(tensor.tolist()).rstrip(b"\0").decode()
