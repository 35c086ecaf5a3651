"""The server that workers are forked from, so that torch is imported once: Python's own, with its signals looked after.

There is one per process. It is started deaf to Ctrl-C, since while it still imports it would answer with a trace, and
when a start is interrupted it is stopped, since workers asked for would still come out of it when nobody waits.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

from tutti.errors import UserError


def start() -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may change what signals do; whoever forks first will start it
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    except OSError as error:
        if "too long" not in str(error):
            raise
        folder = tempfile.gettempdir()
        raise UserError(f"{folder} is too long a name for a folder of sockets; set TMPDIR=/tmp, or another") from None
    finally:
        signal.signal(signal.SIGINT, before)


def stop() -> set[str]:
    """Nothing more shall come out of it; returns what has. Who needs a server later gets another."""
    server, made = _number(), set()
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGSTOP)
            made = made_by_it()
            os.kill(server, signal.SIGKILL)
    return made


def made_by_it() -> set[str]:
    """The processes that it has made and that are still there; nothing on a system that does not tell."""
    server = _number()
    try:
        return set(Path(f"/proc/{server}/task/{server}/children").read_text().split())
    except OSError:
        return set()


def _number() -> int | None:
    return getattr(forkserver._forkserver, "_forkserver_pid", None)
