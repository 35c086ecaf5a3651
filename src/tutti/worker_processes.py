"""Workers that are processes of this machine: started, listened to, and ended with certainty.

They are forked from a server that has imported torch once (fork_server.py). Each has one socket pair to the launcher
(channel.py), over which its job, its events, its error and its result pass, and the store in which the workers of one
machine meet. One loop serves them all. Nothing listens, except the store of a run over several nodes.

A worker's result counts as soon as it is here: how its process ends afterwards changes nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tutti import fork_server
from tutti.channel import ANSWER, ASK, EVENT, FAILURE, JOB, RESULT, START, LauncherEnd
from tutti.clock import Clock
from tutti.comm.handshake import new_secret
from tutti.comm.stores import host_store
from tutti.errors import RunFailed
from tutti.failures import Failure, Seen, find_cause, silence
from tutti.launch_options import LaunchOptions, Report, Result, WorkerFunction
from tutti.launcher_store import Shelf
from tutti.worker import Job, Start, unpack_result

_TURN = 0.25  # seconds that the loop sleeps at most
_SETTLE = 0.2  # seconds in which a death shows that an error of torch's backend may be a consequence of
_COMPLAINTS = 1.2  # seconds in which others may say whom they lost, after the first who did
_SLACK = 2.0  # seconds more than the deadline until the launcher itself notices a silent worker
_LEAVING = 30.0  # seconds that processes may take to end after their results, if the deadline is longer
_ENDING = 5.0  # seconds that killed processes may take


@dataclass
class _Worker:
    """What the launcher has of one worker."""

    rank: int
    end: LauncherEnd
    heard: float
    pid: int = 0
    pidfd: int | None = None
    code: int | None = None
    failure: Failure | None = None
    result: bytes | None = None
    spoken: bool = False  # whether it has sent anything

    @property
    def settled(self) -> bool:
        """There is nothing more to wait for."""
        return self.result is not None or self.failure is not None or self.code is not None

    def see(self, now: float) -> Seen:
        return Seen(self.rank, self.result is not None, self.code, self.failure, now - self.heard)


class WorkerProcesses:
    """The workers of this node, their events and errors, and the certainty that they end."""

    def __init__(self, options: LaunchOptions, listener: Report) -> None:
        self._options, self._listener = options, listener
        self._clock = Clock()
        self._shelf = Shelf()
        self._workers: list[_Worker] = []
        self._complained: float | None = None  # when the first error came
        self._turned = self._clock.now()
        self._refused = ""  # why a worker could not be forked

    def run(self, function: WorkerFunction[Result], args: tuple[Any, ...]) -> Any:
        options = self._options
        doors = tuple(options.fabric.door(rank) for rank in range(options.workers))
        job = Job(function, args, options.wire, options.threads_each(), doors).pack()
        with _ending_in_order(), self._meeting() as (master, port):
            self._session = fork_server.open_session("tutti.worker:work", ["torch", "tutti.worker", *options.preload])
            try:
                self._start(job, master, port)
                self._until(lambda: all(worker.result is not None for worker in self._workers), None)
                self._until(
                    lambda: all(worker.code is not None for worker in self._workers),
                    min(_LEAVING, options.wire.timeout),
                )
            finally:
                self._end()
        first = self._workers[0]
        return unpack_result(first.result) if first.rank == 0 and first.result is not None else None

    # --- the beginning -----------------------------------------------------------------------------------------------

    @contextmanager
    def _meeting(self) -> Iterator[tuple[str, int | None]]:
        """Where the workers meet; on one machine that is here, and there is no port."""
        options = self._options
        if options.nodes == 1:
            yield options.fabric.address, None
            return
        host, _, port = options.master.rpartition(":")
        hosted = None
        if options.node_rank == 0:
            hosted = host_store(host, int(port), options.wire.interface, options.wire.timeout)
        yield host, int(port)
        del hosted

    def _start(self, job: bytes, master: str, port: int | None) -> None:
        options = self._options
        here = options.workers // options.nodes
        secret = os.environ.get("TUTTI_SECRET", "") or (new_secret().hex() if options.nodes == 1 else "")
        for local in range(here):
            ours, theirs = socket.socketpair()
            rank = options.node_rank * here + local
            worker = _Worker(rank, LauncherEnd(ours), self._clock.now())
            self._workers.append(worker)
            self._session.fork(theirs)
            start = Start(rank, options.workers, local, here, master, port, secret, dict(os.environ))
            worker.end.send(START, json.dumps(asdict(start)).encode())
            worker.end.send(JOB, job)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _until(self, holds: Callable[[], bool], seconds: float | None) -> None:
        """Serve the workers; an error ends it, or the time (which is no error: what was to come has come)."""
        limit = None if seconds is None else self._clock.now() + seconds
        while not holds() and (limit is None or self._clock.now() < limit):
            self._turn()
            if seconds is None:
                self._judge()

    def _turn(self) -> None:
        poller = select.poll()
        poller.register(self._session, select.POLLIN)
        by_fd = {worker.end.fileno(): worker for worker in self._workers if not worker.end.closed}
        for worker in by_fd.values():
            poller.register(worker.end, worker.end.events)
        ready = [fd for fd, _ in poller.poll(1000 * self._sleep())]
        now = self._clock.now()
        if now - self._turned > 2 * _TURN + 1:  # this process itself was stopped, or busy elsewhere
            for worker in self._workers:
                worker.heard = now
        self._turned = now
        for fd in ready:
            if fd in by_fd:
                self._serve(by_fd[fd])
        self._take_reports()
        self._answer(self._shelf.answer(self._clock.now()))

    def _sleep(self) -> float:
        until = self._shelf.next_end()
        return _TURN if until is None else min(_TURN, max(0.0, until - self._clock.now()))

    def _serve(self, worker: _Worker) -> None:
        worker.end.flush()
        for kind, body in worker.end.receive():
            worker.heard, worker.spoken = self._clock.now(), True
            if kind == EVENT:
                self._listener(json.loads(body))
            elif kind == ASK:
                self._answer(self._shelf.ask(worker.rank, body, self._clock.now()))
            elif kind == RESULT:
                worker.result = body
            elif kind == FAILURE:
                worker.failure = Failure(**{**json.loads(body), "rank": worker.rank})
                self._complained = self._complained or self._clock.now()
        if worker.end.closed:
            worker.end.close()

    def _answer(self, answers: list[tuple[int, bytes]]) -> None:
        first = self._workers[0].rank
        for rank, answer in answers:
            end = self._workers[rank - first].end
            if not end.closed:
                end.send(ANSWER, answer)

    def _take_reports(self) -> None:
        """What the fork server says of its children."""
        for report in self._session.receive():
            if "pid" in report:
                worker = next(worker for worker in self._workers if not worker.pid)
                worker.pid, worker.pidfd = report["pid"], report["file"] or None
                worker.heard = self._clock.now()
            elif "failed" in report:
                self._refused = report["failed"]
            else:
                worker = next(worker for worker in self._workers if worker.pid == report["ended"])
                if not worker.end.closed:
                    self._serve(worker)  # its last words
                worker.code = report["code"]

    # --- errors ------------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Raise the cause, once it is known."""
        now, timeout = self._clock.now(), self._options.wire.timeout
        if self._refused:
            raise RunFailed(self._refused)
        if self._session.closed:
            raise self._session.how_it_ended()
        seen = [worker.see(now) for worker in self._workers]
        if self._is_clear(seen, now):
            cause = find_cause(seen, 0.6 * timeout)
            if cause is not None:
                raise cause
        for worker in self._workers:
            if not worker.settled and self._is_stuck(worker, now):
                failures = [each.failure for each in seen if each.failure is not None]
                raise silence(worker.see(now), failures)

    def _is_clear(self, seen: list[Seen], now: float) -> bool:
        """Whether what is known suffices, or nothing better is to be expected."""
        failures = [worker.failure for worker in seen if worker.failure is not None]
        if not failures or any(worker.died for worker in seen):
            return True
        since = now - (self._complained or now)
        own = [failure for failure in failures if not failure.of_peer]
        if own:
            return not all(failure.perhaps_of_peer for failure in own) or since > _SETTLE
        return since > _COMPLAINTS or all(worker.settled for worker in self._workers)

    def _is_stuck(self, worker: _Worker, now: float) -> bool:
        """No sign of life. One that has never given any may still be importing, unless it is stopped."""
        if not worker.pid or now - worker.heard <= self._options.wire.timeout + _SLACK:
            return False
        return worker.spoken or _is_stopped(worker.pid)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Kill who is left and see them ended. Whatever interrupts this, the kernel ends them with this process."""
        self._kill_all()
        limit = self._clock.now() + _ENDING
        while self._left() and self._clock.now() < limit and not self._session.closed:
            select.select([self._session], [], [], _TURN)
            with suppress(StopIteration):
                self._take_reports()
            self._kill_all()
        for worker in self._workers:
            if worker.pidfd is not None:
                os.close(worker.pidfd)
            worker.end.close()
        self._session.close()

    def _left(self) -> bool:
        return any(worker.pid and worker.code is None for worker in self._workers)

    def _kill_all(self) -> None:
        """Through pidfds, which never mean another process; the server does it where there are none."""
        self._session.kill()
        for worker in self._workers:
            if worker.pidfd is not None and worker.code is None and hasattr(signal, "pidfd_send_signal"):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """A launcher that is asked to end does so as at Ctrl-C: nothing is left behind."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    heeded = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)
