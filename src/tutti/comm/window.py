"""Memory of this process that other processes of the machine can map, so that what lies in it need not be copied out.

All of it is one file without a name, of which every tensor has a piece of its own. A piece is never given away twice:
what another process has mapped is what it meant to, or nobody's any more.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_right, insort
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """Of some bytes in the file of a process."""

    begin: int  # of the piece they lie in
    length: int  # of the piece
    offset: int  # in the piece


class Windows:
    """What one process shows to others."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("tutti")
        self._end = 0  # of the file
        self._pieces: list[tuple[int, int, int]] = []  # address, length and place in the file, by address
        self._lock = threading.RLock()  # a piece may be let go of anywhere
        self._proof = self.zeros(1, torch.int64)  # the first piece: a number by which others know this file
        self._proof.fill_(int.from_bytes(os.urandom(7)))

    @property
    def number(self) -> int:
        return int(self._proof)

    def zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        """So many elements that others can see; an OSError where there is no memory for them."""
        length = -(-max(1, count) * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            begin = self._end
            os.posix_fallocate(self.fd, begin, length)  # now, or the first touch would end the process
            self._end += length
            memory = _Memory(self.fd, length, offset=begin)
            whole = torch.frombuffer(memory, dtype=dtype)  # it keeps the memory
            piece = (whole.data_ptr(), length, begin)
            insort(self._pieces, piece)
            memory.forget, memory.process = partial(self._forget, piece), os.getpid()
        return whole[:count]

    def find(self, address: int, nbytes: int) -> Place | None:
        """Where others find these bytes; None where they cannot see them."""
        with self._lock:
            index = bisect_right(self._pieces, address, key=lambda piece: piece[0]) - 1
            if index < 0:
                return None
            start, length, begin = self._pieces[index]
        return Place(begin, length, address - start) if address + nbytes <= start + length else None

    def _forget(self, piece: tuple[int, int, int]) -> None:
        with self._lock:
            self._pieces.remove(piece)


class _Memory(mmap.mmap):
    """One piece; its memory is free as soon as nothing here uses it, whoever else has it mapped."""

    forget: Callable[[], None] = staticmethod(lambda: None)
    process: int = -1  # that it is free for; a forked child has it mapped as well and must leave it alone

    def __del__(self) -> None:
        if self.process == os.getpid():
            self.forget()
            self.madvise(mmap.MADV_REMOVE)


class Outlook:
    """Another process's windows, seen from here; an OSError where they cannot be seen, or are another's."""

    def __init__(self, process: int, fd: int, number: int) -> None:
        self._fd = os.open(f"/proc/{process}/fd/{fd}", os.O_RDWR)
        self._mapped: dict[int, Tensor] = {}  # by where they begin
        try:
            found = int(self.see(Place(0, mmap.PAGESIZE, 0), 8).view(torch.int64))
            if found != number:
                raise OSError("another process's memory")
        except BaseException:
            self.close()
            raise

    def see(self, place: Place, nbytes: int) -> Tensor:
        """These bytes, as they are over there."""
        piece = self._mapped.get(place.begin)
        if piece is None:
            memory = mmap.mmap(self._fd, place.length, offset=place.begin)
            piece = self._mapped[place.begin] = torch.frombuffer(memory, dtype=torch.uint8)
        return piece[place.offset : place.offset + nbytes]

    def close(self) -> None:
        self._mapped = {}
        os.close(self._fd)


def windows() -> Windows:
    """This process's; a forked one has its own. An OSError where the system has none."""
    if not hasattr(os, "memfd_create"):
        raise OSError("no memory without a name")
    with _lock:
        process = os.getpid()
        if process not in _windows:
            _windows[process] = Windows()
        return _windows[process]


_windows: dict[int, Windows] = {}  # by process
_lock = threading.Lock()


def _unlock() -> None:
    """In a forked child: a thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
