"""Run a function on N workers: threads, local processes, or the ranks that torchrun or Slurm have started already.

An error in any worker ends all of them at once and is shown first; what the others then say about their lost peer is
not. A thread cannot be ended from outside: one that is stuck is named at the deadline and left behind. Threads and
ranks that are there already are dealt with here, processes in worker_processes.py.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from tutti.clock import Clock
from tutti.comm.place import VARIABLES
from tutti.comm.rendezvous import Place, connect, find_place, here, meet
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.failures import Failure, Seen, find_cause, silence
from tutti.launch_options import LaunchOptions as LaunchOptions
from tutti.launch_options import Report as Report
from tutti.launch_options import Result, say_nothing
from tutti.launch_options import WorkerFunction as WorkerFunction
from tutti.worker import check_not_importing
from tutti.worker_processes import WorkerProcesses

_THREADS_END = 10.0  # seconds that a worker, which is a thread, may take to notice that the run is over
_LOOK = 0.1  # seconds between two looks at threads


def launch(function: WorkerFunction[Result], args: tuple[Any, ...], options: LaunchOptions, listener: Report) -> Any:
    """Worker 0's result; None on nodes and ranks that have no worker 0."""
    options.check()
    check_not_importing()
    place = find_place()
    if place is not None:
        return _on_launched_rank(function, args, options, listener)
    if options.engine == "threads":
        return _on_threads(function, args, options, listener)
    return WorkerProcesses(options, listener).run(function, args)


def workers_already_started() -> int | None:
    """How many workers a launcher outside has started; None if it is for us to do."""
    place = find_place()
    return place.size if place is not None else None


# --- threads, and ranks that are there already -----------------------------------------------------------------------


def _on_launched_rank(
    function: WorkerFunction[Result], args: tuple[Any, ...], options: LaunchOptions, listener: Report
) -> Result | None:
    place = find_place()
    assert place is not None
    if place.size != options.workers and options.workers != 1:
        raise UserError(f"the launcher started {place.size} workers, not {options.workers}; leave --workers out")
    if options.workers < place.size:
        return _in_turn(function, args, options, listener, place)
    comm = connect(options.wire)
    result = function(comm, listener if comm.rank == 0 else say_nothing, *args)
    comm.close()
    return result if place.rank == 0 else None


def _in_turn(
    function: WorkerFunction[Result], args: tuple[Any, ...], options: LaunchOptions, listener: Report, place: Place
) -> Result | None:
    """A run of one worker: rank 0 does it as if nobody had launched it, and the others wait, however long it takes."""
    store = meet(place, options.wire.timeout, options.wire.interface)
    if place.rank > 0:
        store.wait(["done"], timedelta(days=30))
        return None
    hidden = {key: os.environ.pop(key) for key in VARIABLES if key in os.environ}
    try:
        with _computing_threads(options.threads_each()):
            return function(connect(options.wire), listener, *args)
    finally:
        os.environ.update(hidden)
        store.set("done", "")


def _on_threads(
    function: WorkerFunction[Result], args: tuple[Any, ...], options: LaunchOptions, listener: Report
) -> Result:
    world = World(options.workers, timeout=options.wire.timeout)
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}
    failures: dict[int, Failure] = {}
    interrupted = threading.Event()

    def report(event: dict[str, Any]) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        listener(event)

    def work(rank: int) -> None:
        here.comm = world.comm(rank)
        try:
            results[rank] = function(here.comm, report if rank == 0 else say_nothing, *args)
            world.leave(rank)
        except BaseException as error:
            errors[rank] = error
            failures[rank] = Failure.of(rank, error, world.clock.now())
            world.abort(rank)

    with _computing_threads(options.threads_each()):
        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(options.workers)]
        try:
            for thread in threads:
                thread.start()
            stuck = _wait_for_all(threads, failures, options.wire.timeout)
        except KeyboardInterrupt:
            interrupted.set()
            for rank in range(options.workers):
                world.abort(rank)
            _wait_for_the_end(threads)
            raise
    seen = [
        Seen(rank, rank in results, None, failures.get(rank), silent=options.wire.timeout if rank in stuck else 0.0)
        for rank in range(options.workers)
    ]
    cause = find_cause(seen, 0.0) or (silence(seen[stuck[0]]) if stuck else None)
    if cause is not None:
        origins = {str(failure.error()): errors[rank] for rank, failure in failures.items()}
        raise cause from origins.get(str(cause))
    return results[0]


def _wait_for_all(threads: list[threading.Thread], failures: dict[int, Failure], timeout: float) -> list[int]:
    """Until they have ended; returns those that do not. After an error they have some seconds to notice. One that is
    left while all others have ended well is stuck when it stays at the same place of the program until the deadline."""
    clock = Clock()
    failed: float | None = None
    moved, places = clock.now(), dict[int, list[tuple[int, int]]]()
    while alive := [rank for rank, thread in enumerate(threads) if thread.is_alive()]:
        threads[alive[0]].join(_LOOK)
        now, before = clock.now(), places
        places = {rank: _find_place(threads[rank]) for rank in alive}
        if places != before or len(alive) == len(threads):
            moved = now
        if failures and failed is None:
            failed = now
        if failed is not None and now - failed > min(_THREADS_END, timeout):
            return alive
        if now - moved > timeout:
            return alive
    return []


def _find_place(thread: threading.Thread) -> list[tuple[int, int]]:
    """Where in the program a thread is: every function that it is in, and the instruction there."""
    place: list[tuple[int, int]] = []
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        place.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return place


def _wait_for_the_end(threads: list[threading.Thread]) -> None:
    """Of all, also of one that is only just starting: Python cannot end while a thread is inside torch."""
    clock = Clock()
    limit = clock.now() + _THREADS_END
    while not set(threads).isdisjoint(threading.enumerate()) and clock.now() < limit:
        clock.sleep(0.01)


@contextmanager
def _computing_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
