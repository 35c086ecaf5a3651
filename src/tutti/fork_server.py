"""The process that workers are forked from, so that torch is imported once.

There is one per launcher process, started with the first run and ended with the launcher. Over a socket pair it takes
sessions, one per run; over a session it takes requests, and reports what it forked and how that ended:

    launcher -> "F" and one end of a socket pair      fork a worker, which gets that end
    launcher -> "K"                                   kill the workers of this session
    server   -> {"pid": 7} and a pidfd                in the order of the requests
    server   -> {"ended": 7, "code": -9}              as `subprocess` counts codes: a signal is negative
    server   -> {"failed": "..."}                     a fork that the system refused

Nothing outlives the launcher. The kernel kills the server when its launcher ends, and the workers when the server ends
(PR_SET_PDEATHSIG, which also ends a stopped process); where the kernel cannot, the end of a socket pair does.
The server ignores Ctrl-C: the launcher decides what an interrupt ends.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import spawn
from typing import Any

from tutti.errors import RunFailed
from tutti.machine import die_with_parent, say_memory_limit

_LOOK = 100  # milliseconds between two looks at the children where the system has no pidfds
_ENDING = 5.0  # seconds that the server may take to end
_lock = threading.Lock()
_server: _Server | None = None  # of this process


# --- the launcher's side ---------------------------------------------------------------------------------------------


class Session:
    """The workers of one run; closed, those that are left are killed."""

    def __init__(self, connection: socket.socket, server: _Server) -> None:
        connection.setblocking(False)
        self._connection, self._server = connection, server
        self._in, self._files = bytearray(), list[int]()
        self.closed = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def fork(self, end: socket.socket) -> None:
        """Ask for one worker; this process's copy of its end is closed."""
        self._connection.setblocking(True)
        with end, suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._connection, [b"F"], [end.fileno()])
        self._connection.setblocking(False)

    def kill(self) -> None:
        with suppress(OSError):
            self._connection.send(b"K")

    def receive(self) -> list[dict[str, Any]]:
        """What the server has reported since; a pidfd, where there is one, stands under "file"."""
        try:
            while True:
                data, files, _, _ = socket.recv_fds(self._connection, 2**16, 8)
                self._files += files
                self._in += data
                if not data:
                    self.closed = True
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        *lines, rest = bytes(self._in).split(b"\n")
        self._in = bytearray(rest)
        reports = [json.loads(line) for line in lines]
        for report in reports:
            if report.get("file"):
                report["file"] = self._files.pop(0)
        return reports

    def how_it_ended(self) -> RunFailed:
        """For a server that has ended by itself."""
        code = self._server.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return RunFailed(f"the process that workers are forked from {how}{say_memory_limit()}")

    def close(self) -> None:
        self._connection.close()
        for file in self._files:
            os.close(file)


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    connection: socket.socket
    owner: int = field(default_factory=os.getpid)

    @property
    def serves(self) -> bool:
        """Not one whose process has ended, nor the parent's in a process that was forked from it."""
        return self.owner == os.getpid() and self.process.poll() is None


def open_session(entry: str, preload: Sequence[str]) -> Session:
    """`entry` ("module:function") is called in every worker with its end; `preload` is imported before forking."""
    global _server
    with _lock:
        if _server is None or not _server.serves:
            _server = _start(entry, preload)
        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # a server that has just ended closes the session, and is named there
            socket.send_fds(_server.connection, [b"S"], [theirs.fileno()])
        return Session(ours, _server)


def stop() -> None:
    """End the server and all its workers; a later session starts another one."""
    global _server
    with _lock:
        server, _server = _server, None
    if server is None or server.owner != os.getpid():
        return
    server.connection.close()
    try:
        server.process.wait(_ENDING)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()


def _start(entry: str, preload: Sequence[str]) -> _Server:
    ours, theirs = socket.socketpair()
    kernel_watches = threading.current_thread() is threading.main_thread()  # it watches the thread that starts
    asked = {"file": theirs.fileno(), "parent": os.getpid() if kernel_watches else 0, "entry": entry}
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from tutti.fork_server import serve; serve(preload={list(preload)!r}, **{asked!r})"
    )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    command = [os.fsdecode(spawn.get_executable()), *flags, "-c", program]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: it is deaf from the beginning
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    except OSError as error:
        ours.close()
        raise RunFailed(f"no process can be started here: {error.strerror}{say_memory_limit()}") from None
    finally:
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _Server(process, ours)


atexit.register(stop)


# --- the server's side -----------------------------------------------------------------------------------------------


def serve(file: int, parent: int, entry: str, preload: Sequence[str]) -> None:
    """The server's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if parent:
        die_with_parent(parent)
    for module in preload:
        with suppress(Exception):  # a worker that needs it will say what is wrong
            importlib.import_module(module)
    module, _, function = entry.partition(":")
    _Serving(socket.socket(fileno=file), module, function).run()
    os._exit(0)  # taking torch down takes longer than the launcher may want to wait


class _Serving:
    def __init__(self, connection: socket.socket, module: str, function: str) -> None:
        self._connection, self._module, self._function = connection, module, function
        self._sessions: dict[int, _Served] = {}
        self._closed: list[_Served] = []  # whose last children are ending
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)

    def run(self) -> None:
        """Until the launcher is gone."""
        while True:
            children = any(session.children for session in self._all())
            ready = {fd for fd, _ in self._poller.poll(None if hasattr(os, "pidfd_open") or not children else _LOOK)}
            if self._connection.fileno() in ready and not self._admit():
                for session in self._all():
                    session.kill()
                return
            for fd in ready & set(self._sessions):
                self._serve(self._sessions[fd])
            for session in self._all():
                self._reap(session)
            self._closed = [session for session in self._closed if session.children]

    def _all(self) -> list[_Served]:
        return [*self._sessions.values(), *self._closed]

    def _admit(self) -> bool:
        data, files, _, _ = socket.recv_fds(self._connection, 1, 1)
        for file in files:
            session = _Served(socket.socket(fileno=file))
            self._sessions[file] = session
            self._poller.register(file, select.POLLIN)
        return bool(data)

    def _serve(self, session: _Served) -> None:
        try:
            data, files, _, _ = socket.recv_fds(session.connection, 1, 1)
        except OSError:
            data, files = b"", []
        if data == b"F":
            self._fork(session, socket.socket(fileno=files[0]))
            return
        session.kill()
        if not data:
            fd = session.connection.fileno()
            self._poller.unregister(fd)
            session.connection.close()
            self._closed.append(self._sessions.pop(fd))

    def _fork(self, session: _Served, end: socket.socket) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            end.close()
            session.report({"failed": f"no process can be started here: {error.strerror}{say_memory_limit()}"})
            return
        if pid == 0:
            try:
                self._begin(server, end)
            finally:
                os._exit(1)
        end.close()
        pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        session.children[pid] = pidfd
        session.report({"pid": pid, "file": pidfd is not None}, pidfd)
        if pidfd is not None:
            self._poller.register(pidfd, select.POLLIN)

    def _begin(self, server: int, end: socket.socket) -> None:
        """The worker's life: it keeps nothing of the server's."""
        die_with_parent(server)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self._connection.close()
        for session in self._all():
            session.connection.close()
            for pidfd in session.children.values():
                if pidfd is not None:
                    os.close(pidfd)
        getattr(importlib.import_module(self._module), self._function)(end)

    def _reap(self, session: _Served) -> None:
        for pid, pidfd in list(session.children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del session.children[pid]
                self._forget(pidfd)
                session.report({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _forget(self, pidfd: int | None) -> None:
        if pidfd is not None:
            self._poller.unregister(pidfd)
            os.close(pidfd)


@dataclass
class _Served:
    """A session, and its children that have not been reaped: their numbers are nobody else's."""

    connection: socket.socket
    children: dict[int, int | None] = field(default_factory=dict)  # the pidfd of each

    def report(self, what: dict[str, Any], file: int | None = None) -> None:
        with suppress(OSError):  # the launcher has closed it; the next turn notices
            socket.send_fds(self.connection, [json.dumps(what).encode() + b"\n"], [] if file is None else [file])

    def kill(self) -> None:
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
