"""A worker's error on its way to the launcher, what is told of it, and which of several is the cause."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from tutti.comm.base import PeerLost
from tutti.errors import RunFailed, UserError
from tutti.machine import say_memory_limit

_OF_BACKEND = ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError")
_NO_MEMORY = ("annot allocate memory", "can't allocate memory", "an't start new thread", "bad_alloc", "out of memory")


@dataclass(frozen=True)
class Failure:
    """Plain data, since it comes out of another process."""

    rank: int
    kind: str
    message: str
    trace: str
    time: float
    by_user: bool
    of_peer: bool
    accused: int | None = None  # the peer that was lost

    @classmethod
    def of(cls, rank: int, error: BaseException, time: float) -> Failure:
        trace = "".join(traceback.format_exception(error))
        refused = isinstance(error, PermissionError) and error.filename is not None
        user, peer = isinstance(error, UserError) or refused, isinstance(error, PeerLost)
        accused = error.peer if isinstance(error, PeerLost) else None
        return cls(rank, type(error).__name__, describe(error), trace, time, user, peer, accused)

    @property
    def perhaps_of_peer(self) -> bool:
        """A backend of torch's says nothing better when a peer is lost."""
        return self.of_peer or self.kind in _OF_BACKEND

    def error(self) -> UserError | RunFailed:
        """What the user is told; a stack only where the program is to blame."""
        if self.by_user:
            return UserError(self.message)
        if self.of_peer:
            return RunFailed(self.message)
        error = RunFailed(f"worker {self.rank} raised {self.kind}: {self.message}")
        error.add_note(self.trace)
        return error


def describe(error: BaseException) -> str:
    """Its text, whatever it is made of."""
    if isinstance(error, PermissionError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    try:
        text = str(error)
    except Exception as second:
        return f"(its text cannot be made: {type(second).__name__})"
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY):
        return (text or "no memory is left") + say_memory_limit()
    return text


@dataclass(frozen=True)
class Seen:
    """What the launcher knows of one worker."""

    rank: int
    finished: bool = False  # its function has returned
    code: int | None = None  # how its process ended
    failure: Failure | None = None
    silent: float = 0.0  # seconds since it was heard of

    @property
    def died(self) -> bool:
        """It ended before its function did and without a word."""
        return self.code is not None and not self.finished and self.failure is None


def find_cause(workers: Sequence[Seen], patience: float) -> BaseException | None:
    """The first cause of what has happened; None where nothing has.

    A worker's own error comes first, unless it may be no more than the backend's way to say that another one died; then
    a death, then a worker that is silent for longer than `patience` seconds while others complain, then a lost peer:
    the one who has not complained himself, and of whom most complain.
    """
    failures = sorted((w.failure for w in workers if w.failure is not None), key=lambda f: f.time)
    own = [failure for failure in failures if not failure.of_peer]
    died = [worker for worker in workers if worker.died]
    for failure in own:
        if not (died and failure.perhaps_of_peer):
            return failure.error()
    if died:
        return _death(died[0])
    if not failures:
        return None
    still = max((w for w in workers if w.failure is None and not w.finished), key=lambda w: w.silent, default=None)
    if still is not None and still.silent > patience:
        return silence(still, failures)
    complained = {failure.rank for failure in failures}
    votes = [failure.accused for failure in failures]
    return min(failures, key=lambda f: (f.accused is None, f.accused in complained, -votes.count(f.accused))).error()


def silence(worker: Seen, failures: Sequence[Failure] = ()) -> RunFailed:
    """In the words of another worker that lost it, if there is one."""
    for failure in failures:
        if failure.accused == worker.rank:
            return RunFailed(failure.message)
    return RunFailed(f"worker {worker.rank} is stopped or stuck: it gave no sign of life for {worker.silent:.0f} s")


def _death(worker: Seen) -> BaseException:
    code = worker.code or 0
    if code == -signal.SIGINT:
        return KeyboardInterrupt()
    if code < 0:
        return RunFailed(f"worker {worker.rank} was killed by signal {-code} ({_name_signal(-code)})")
    return RunFailed(f"worker {worker.rank} ended with exit code {code} and without a word")


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "unnamed"
