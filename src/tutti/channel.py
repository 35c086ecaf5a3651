"""Frames between the launcher and one worker, over a socket pair that no other process can reach.

A frame is its kind (one byte), the length of its body (8 bytes) and the body. Bodies are JSON, except two: the worker
unpickles its job, which comes from the process that started it, and the result is plain data as torch saves it (read
with `weights_only`).
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

START, JOB = b"S", b"J"  # launcher to worker: which worker it is; what it runs
EVENT, ALIVE, FAILURE, RESULT = b"E", b"A", b"F", b"R"  # worker to launcher
ASK, ANSWER = b"?", b"!"  # the store
_HEAD = struct.Struct("<cQ")
_PIECE = 2**20  # bytes that one system call reads at most

Frame = tuple[bytes, bytes]


class WorkerEnd:
    """The worker's end: it blocks, and several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._connection, self._lock = connection, threading.Lock()

    def send(self, kind: bytes, body: bytes = b"") -> None:
        with self._lock:
            self._connection.sendall(_HEAD.pack(kind, len(body)) + body)

    def receive(self) -> Frame:
        kind, length = _HEAD.unpack(self._read(_HEAD.size))
        return kind, self._read(length)

    def wait_for_hang_up(self, seconds: float | None) -> bool:
        """Whether the launcher is gone, after this many seconds at most."""
        poller = select.poll()
        poller.register(self._connection, 0)  # a hang-up is always reported
        return bool(poller.poll(None if seconds is None else seconds * 1000))

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            piece = self._connection.recv(min(length - len(data), _PIECE))
            if not piece:
                raise EOFError("the launcher is gone")
            data += piece
        return bytes(data)


class LauncherEnd:
    """The launcher's end: it never blocks, whatever the worker does."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._out: list[memoryview] = []
        self._in = bytearray()
        self.closed = False

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def events(self) -> int:
        """What to poll for."""
        return select.POLLIN | (select.POLLOUT if self._out else 0)

    def send(self, kind: bytes, body: bytes = b"") -> None:
        self._out += [memoryview(_HEAD.pack(kind, len(body))), memoryview(body)]
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes; the rest stays here."""
        with suppress(OSError):
            while self._out:
                sent = self._connection.send(self._out[0]) if len(self._out[0]) else 0
                self._out[0] = self._out[0][sent:]
                if not len(self._out[0]):
                    del self._out[0]

    def receive(self) -> Iterator[Frame]:
        """All frames that are there."""
        self._fill()
        while len(self._in) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._in)
            end = _HEAD.size + length
            if len(self._in) < end:
                return
            body = bytes(memoryview(self._in)[_HEAD.size : end])
            del self._in[:end]
            yield kind, body

    def close(self) -> None:
        self.closed = True
        self._connection.close()

    def _fill(self) -> None:
        try:
            while piece := self._connection.recv(_PIECE):
                self._in += piece
            self.closed = True
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
