"""What two workers of one machine share: a pipe in each direction, in memory that both have mapped.

A pipe is a ring of bytes with positions in front, published behind the bytes they speak of. What its writer shows in a
window (window.py) and is long is lent instead: the reader takes it from there.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from tutti.comm.link import HEADER, Link, bytes_of, memory_at
from tutti.comm.window import Outlook, Place, windows

SHORT = 2**19  # bytes of a message that goes at once
LINE = 64  # bytes; what two processors hand each other at a time
NOWHERE = Place(-1, 0, 0)
POSITIONS = 5 * LINE  # bytes before the ring
_LONG = 2**15  # bytes from which a copy is worth letting other threads run


class Pipes:
    """What stands in a link for its socket: a pipe to the peer and one from it."""

    def __init__(self, link: Link, memory: mmap.mmap, first: bool) -> None:
        self._link, self._socket, self.peer = link, link.connection, link.peer
        self._memory = memory
        whole = memoryview(memory)
        half = len(whole) // 2
        parts = whole[:half], whole[half:]
        self._out, self._in = (Pipe(parts[0]), Pipe(parts[1])) if first else (Pipe(parts[1]), Pipe(parts[0]))
        self._ended = False
        self.lends = False  # to a peer that can see this worker's windows
        self._lent = False  # what is to be sent next
        self._drafts: dict[int, Place] = {}  # the peer's landings that this worker writes to, by their address here

    def look_out(self, process: int, fd: int, number: int) -> bool:
        """Whether the peer's windows can be seen."""
        with suppress(OSError):
            self._in.outlook = Outlook(process, fd, number)
        return self._in.outlook is not None

    def open(self, landing: Tensor) -> Place:
        """Let the peer write there itself; nowhere, if it cannot or need not."""
        place = None
        if self.lends and landing.nbytes > SHORT:
            place = windows().find(landing.data_ptr(), landing.nbytes)
        if place is None:
            return NOWHERE
        self._in.landings[place] = landing.data_ptr()
        self._link.drafted.add(landing.data_ptr())
        return place

    def reach(self, place: Place, landing: Tensor) -> Tensor:
        """The peer's landing, of the same kind as the one here."""
        assert self._in.outlook is not None, "it lends only to those who can see it"
        draft = self._in.outlook.see(place, landing.nbytes).view(landing.dtype)
        self._drafts[draft.data_ptr()] = place
        return draft

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

    def fetch(self, code: int, tensor: Tensor) -> bool | None:
        """A whole short message at once; False where nothing has come, None where that is not the whole of this one."""
        link = self._link
        if link.posted or link.body is not None or link.got or link.pushed or link.late or link.aside.get(code):
            return None
        fetched = self._in.fetch(code, tensor)
        if fetched:
            self._wake(self._in.writer_sleeps)
        return fetched

    def sendmsg(self, parts: list[Any]) -> int:
        """Bytes that have passed; of what was lent none before all of it is back."""
        if self._out.on_loan():
            raise BlockingIOError
        *before, last = parts
        if self._lent:
            self._lent = False
            return len(last)
        place, there = self._find(last)
        sent = self._out.put(parts if place is None else before)
        if place is not None and sent == sum(map(len, before)):
            self._out.lend(place, len(last), there)
            self._lent = True
        elif sent == 0 and any(len(part) for part in parts):
            raise BlockingIOError
        self._wake(self._out.reader_sleeps)
        return sent

    def _find(self, part: Any) -> tuple[Place | None, bool]:
        """Where the peer finds these bytes, and whether it has them already; None where they go through the ring."""
        if len(part) <= SHORT:
            return None, False
        address = _address(part)
        if address in self._drafts:
            return self._drafts[address], True
        return windows().find(address, len(part)) if self.lends else None, False

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
        """What is on loan, if it is just so much; to be given back."""
        lent = self._in.borrow()
        return lent if lent is not None and len(lent) == nbytes else None

    def give_back(self, nbytes: int) -> None:
        self._in.give_back(nbytes)
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


class Pipe:
    """One direction: positions that only grow, who sleeps, and a ring of bytes. What is on loan has positions too, but
    no place in the ring, and nothing is written behind it until it is back. It lies in the writer's windows, or there
    already: in a landing of the reader's that the writer has written to."""

    outlook: Outlook | None = None  # on the writer's windows

    def __init__(self, memory: memoryview) -> None:
        numbers = memory[:POSITIONS].cast("Q")
        step = LINE // 8
        self._written, self._read = numbers[0:1], numbers[step : step + 1]
        self.reader_sleeps, self.writer_sleeps = numbers[2 * step : 2 * step + 1], numbers[3 * step : 3 * step + 1]
        self._loan = numbers[4 * step : 4 * step + 6]  # from where to where, its place, and whether it is there already
        self.landings: dict[Place, int] = {}  # addresses of what the writer writes to
        self._ring = memory[POSITIONS:]
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

    def lend(self, place: Place, nbytes: int, there: bool) -> None:
        at = self._written[0]
        for index, value in enumerate((at, at + nbytes, *place, there)):
            self._loan[index] = value
        self._written[0] = at + nbytes

    def on_loan(self) -> bool:
        return self._read[0] < self._loan[1]

    def borrow(self) -> Tensor | None:
        """What is left of a loan, where that comes next."""
        at, written = self._read[0], self._written[0]  # looked at before the loan, which was there before
        begin, end, *place, there = self._loan
        if self.outlook is None or not begin <= at < end <= written:
            return None
        if there:
            address = self.landings[Place(*place)]
            whole = torch.frombuffer(memory_at(address, end - begin), dtype=torch.uint8)
        else:
            whole = self.outlook.see(Place(*place), end - begin)
        return whole[at - begin :]

    def give_back(self, nbytes: int) -> None:
        self._read[0] += nbytes

    def take(self, view: memoryview) -> int:
        lent = self.borrow()
        if lent is not None:
            length = min(len(view), len(lent))
            if _address(view) != lent.data_ptr():
                ctypes.memmove(_address(view), lent.data_ptr(), length)
            self.give_back(length)
            return length
        at = self._read[0]
        length = min(len(view), self._written[0] - at)
        if at < self._loan[1]:  # one that has been made just now, or comes behind these bytes
            length = min(length, self._loan[0] - at)
        if length:
            self._copy_out(at % self._capacity, view, length)
            self._read[0] = at + length
        return length

    def post(self, code: int, tensor: Tensor) -> bool:
        nbytes, at = tensor.nbytes, self._written[0]
        end = at + HEADER.size + nbytes
        if nbytes > SHORT or end - self._read[0] > self._capacity or not tensor.is_cpu:
            return False
        place = at % self._capacity
        if place + end - at <= self._capacity:  # usually; what goes round the end takes longer
            HEADER.pack_into(self._ring, place, code, nbytes)
            _copy(self._ring[place + HEADER.size : place + end - at], bytes_of(tensor))
        else:
            self._copy_in(place, HEADER.pack(code, nbytes), HEADER.size)
            self._copy_in((place + HEADER.size) % self._capacity, bytes_of(tensor), nbytes)
        self._written[0] = end
        return True

    def fetch(self, code: int, tensor: Tensor) -> bool | None:
        at, written = self._read[0], self._written[0]
        if written == at:
            return False
        nbytes = tensor.nbytes
        end = at + HEADER.size + nbytes
        if nbytes > SHORT or end > written or not tensor.is_cpu:
            return None
        place = at % self._capacity
        is_whole = place + end - at <= self._capacity
        if (HEADER.unpack_from(self._ring, place) if is_whole else self._unpack(place)) != (code, nbytes):
            return None
        if is_whole:
            _copy(bytes_of(tensor), self._ring[place + HEADER.size : place + end - at])
        else:
            self._copy_out((place + HEADER.size) % self._capacity, bytes_of(tensor), nbytes)
        self._read[0] = end
        return True

    def _unpack(self, place: int) -> tuple[int, ...]:
        """The header, which may go round the end."""
        head = memoryview(bytearray(HEADER.size))
        self._copy_out(place, head, HEADER.size)
        return HEADER.unpack(head)

    def _copy_in(self, place: int, part: Any, length: int) -> None:
        first = min(length, self._capacity - place)
        _copy(self._ring[place : place + first], part[:first])
        if first < length:
            _copy(self._ring[: length - first], part[first:length])

    def _copy_out(self, place: int, view: memoryview, length: int) -> None:
        first = min(length, self._capacity - place)
        _copy(view[:first], self._ring[place : place + first])
        if first < length:
            _copy(view[first:length], self._ring[: length - first])


def _copy(target: memoryview, source: Any) -> None:
    if len(target) < _LONG:
        target[:] = source
    else:
        ctypes.memmove(_address(target), _address(source), len(target))


def _address(view: Any) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
