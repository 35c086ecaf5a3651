"""Notices that the workers' programs no longer do the same, and ends their waits with one sentence.

Every worker has one thread that looks at a wire of its own twice a second. A worker that has been inside one operation
for longer than `PATIENCE` sends its last operations (operations.py) to all others. A worker that closes its run, or
leaves it by an error, sends them with the reason. Two reports prove a fault in two cases only:

    two workers have called different operations under the same number
    a worker is gone, and another is in an operation that it has never completed

Nothing else counts: a worker that computes, evaluates, is stopped, or is many steps behind is not accused, however
long it takes. The worker that finds a fault sends the sentence to all others, and on every worker the waits of the run
raise it. Operations that send nothing (`consensus()` where all workers are equal) are not compared.

Torch's wire has no such thread, since its backend's waits cannot be interrupted: there the deadline of the backend
remains. The same holds for waits inside native routes and `torch-ddp` on our own wires.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import Comm, PeerLost, Pending
from tutti.comm.metered import Metered
from tutti.errors import Desynchronised, Diverged, RunFailed
from tutti.operations import Operations, Report, describe_difference

PATIENCE = 2.0  # seconds in one operation after which a worker reports it
TICK = 0.5  # seconds between two looks
_GRACE = 0.2  # seconds that a goodbye may take behind the end of a connection
_BYTES = 8192  # of a message
_LONGEST = 500  # characters of an error that are told
_TAG = "control/watch"
_CONSEQUENCES: dict[str, type[RunFailed]] = {"Desynchronised": Desynchronised, "Diverged": Diverged}


class Watch:
    """One worker's side of one run; every worker makes it together."""

    def __init__(self, comm: Metered, operations: Operations, interrupt: Callable[[BaseException], None]) -> None:
        self._comm, self._operations, self._interrupt = comm, operations, interrupt
        self._clock = Clock()  # real time, whatever the wire's is
        self._lock = threading.Lock()  # whoever holds it may use the wire
        self._stop = threading.Event()
        self._inbox: dict[int, tuple[Tensor, Pending]] = {peer: self._expect(peer) for peer in comm.others()}
        self._reports: dict[int, Report] = {}
        self._said = 0  # the number of the operation that was reported last
        self._announced = False
        self._verdict = ""
        self._patience, self._tick = PATIENCE, TICK
        self._thread = threading.Thread(target=self._work, name=f"tutti-watch-{comm.rank}", daemon=True)
        self._thread.start()

    def announce(self) -> None:
        """Report the operations so far to all others soon; nobody waits for it."""
        self._announced = True

    def explain(self, error: BaseException) -> BaseException:
        """The cause of a lost peer, if that one has said goodbye."""
        if not isinstance(error, PeerLost) or self._stop.is_set():
            return error
        limit = self._clock.now() + _GRACE
        while True:
            with self._lock:
                self._listen()
                cause = self._find_gone()
            if cause is not None:
                return cause
            if self._clock.now() > limit:
                return error
            self._clock.sleep(_GRACE / 10)

    @property
    def closed(self) -> bool:
        return self._stop.is_set()

    def close(self, error: BaseException | None) -> None:
        """Say why this worker leaves, and end the thread."""
        if self._stop.is_set():
            return
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        gone, kind = _reason(self._comm.rank, error)
        self._send(self._operations.report(self._comm.rank)._replace(gone=gone, kind=kind))
        self._comm.close()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.wait(self._tick):
            with self._lock:
                self._look()

    def _look(self) -> None:
        self._listen()
        waits = self._operations.inside and self._clock.now() - self._operations.entered > self._patience
        last = self._operations.last.number
        if self._announced or (waits and self._said != last):
            self._said, self._announced = last, False
            self._send(self._operations.report(self._comm.rank))
        self._judge(waits)

    def _judge(self, waits: bool) -> None:
        if self._verdict:
            return
        own = self._operations.report(self._comm.rank)
        for report in self._reports.values():
            one, other = sorted((own, report))
            if fault := describe_difference(one, other):
                self._send(own, verdict=fault)
                self._raise(Desynchronised(fault))
                return
        if waits and (cause := self._find_gone()):
            self._raise(cause)

    def _find_gone(self) -> RunFailed | None:
        """The worker that has left before the operation that this worker is in."""
        last = self._operations.last
        for report in self._reports.values():
            if report.gone and last.number > report.completed:
                if report.kind:
                    return _CONSEQUENCES.get(report.kind, PeerLost)(report.gone)
                return PeerLost(f"{report.gone}, while worker {self._comm.rank} was in {last}")
        return None

    def _raise(self, error: RunFailed) -> None:
        self._verdict = str(error)
        self._interrupt(error)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _expect(self, peer: int) -> tuple[Tensor, Pending]:
        buffer = torch.zeros(_BYTES, dtype=torch.uint8)
        return buffer, self._comm.inner.recv(peer, buffer, _TAG)

    def _listen(self) -> None:
        """Take in what has come."""
        for peer, (buffer, pending) in list(self._inbox.items()):
            with suppress(RunFailed, OSError):
                if pending.arrived():
                    pending.wait()
                    self._comm.meter.count(_TAG, [], [(peer, buffer)], 0.0)
                    self._inbox[peer] = self._expect(peer)
                    self._take(buffer)

    def _take(self, message: Tensor) -> None:
        verdict, report = json.loads(message.numpy().tobytes().rstrip(b"\0"))
        report = Report.from_list(report)
        self._reports[report.rank] = report
        if verdict and not self._verdict:
            self._raise(Desynchronised(verdict))

    def _send(self, report: Report, verdict: str = "") -> None:
        """To all others that are still there."""
        message = _to_tensor(report, verdict)
        for peer in self._comm.others():
            with suppress(RunFailed, OSError):
                self._comm.inner.send(peer, message, _TAG)
                self._comm.meter.count(_TAG, [(peer, message)], [], 0.0)


def watch(comm: Metered, lane: Comm, operations: Operations) -> Watch | None:
    """A watch over one run's waits, in `comm` and on the lane; none where they cannot be interrupted or looked at."""
    if comm.size == 1 or not comm.watchable:
        return None

    def interrupt(error: BaseException) -> None:
        comm.interrupt(error)
        lane.interrupt(error)

    result = Watch(comm.fork_small("watch"), operations, interrupt)
    operations.on_error = result.explain
    return result


def _to_tensor(report: Report, verdict: str) -> Tensor:
    """A message of one length: as many of the last operations as it has space for."""
    while len(data := json.dumps([verdict, report]).encode()) > _BYTES:
        report = report._replace(entries=report.entries[len(report.entries) // 2 :])
    return torch.frombuffer(bytearray(data.ljust(_BYTES, b"\0")), dtype=torch.uint8)


def _reason(rank: int, error: BaseException | None) -> tuple[str, str]:
    """Why this worker leaves, and the kind of its error where that names a worker already."""
    if error is None:
        return f"worker {rank} has closed its run", ""
    text = str(error)[:_LONGEST]
    if isinstance(error, RunFailed):
        return text, type(error).__name__
    return f"worker {rank} raised {type(error).__name__}: {text}", ""
