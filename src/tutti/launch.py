"""Run a function on N workers: threads, local processes, or the ranks that torchrun or Slurm have started already.

Processes are started by torch's elastic launcher, forked from a server that has imported torch once. An error in any
worker ends all of them at once and is shown first; what the others then say about their lost peer is not. No port is
chosen by hand. Nothing is left running: workers die when their parent does, whatever killed it.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import select
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from tutti import fork_server
from tutti.clock import Clock
from tutti.comm.base import Comm, PeerLost
from tutti.comm.handshake import new_secret
from tutti.comm.rendezvous import Place, WireOptions, connect, find_place, here, meet
from tutti.comm.threads import World
from tutti.errors import RunFailed, UserError
from tutti.failures import Failure
from tutti.machine import count_cores
from tutti.networks.base import Door, Fabric

Report = Callable[[dict[str, Any]], None]  # how worker 0 tells the outside what is going on
Result = TypeVar("Result", covariant=True)

_THREADS_END = 10.0  # seconds that an interrupted worker, which is a thread, may take to notice
_GRACE = 0.6  # seconds a worker that lost a peer waits, so that the peer's own error is found first


class WorkerFunction(Protocol[Result]):
    """What runs on every worker; processes need it importable and its arguments picklable."""

    def __call__(self, comm: Comm, report: Report, *args: Any) -> Result: ...


@dataclass(frozen=True)
class LaunchOptions:
    """Where and how many: `workers` over all nodes; the master is needed only when a run spans several nodes."""

    workers: int = 4
    engine: str = "processes"
    wire: WireOptions = field(default_factory=WireOptions)
    nodes: int = 1
    node_rank: int = 0
    master: str = ""
    preload: tuple[str, ...] = ()  # modules that the workers shall find imported
    threads: int = 0  # that a worker computes with; 0 is its share of this machine's cores
    fabric: Fabric = field(default_factory=Fabric)  # what joins the workers of this machine

    def threads_each(self) -> int:
        return self.threads or self.fabric.threads or max(1, count_cores() // (self.workers // self.nodes))

    @property
    def wire_used(self) -> str:
        """What a record calls the wire: workers on hosts of their own share no memory, nor do encrypted ones."""
        apart = self.fabric.doors or self.wire.tls is not None
        return "tcp" if self.wire.wire == "shared" and apart else self.wire.wire

    def check(self) -> None:
        if self.workers < 1:
            raise UserError(f"--workers must be at least 1, not {self.workers}")
        if self.workers % self.nodes:
            raise UserError(f"{self.workers} workers do not divide over {self.nodes} nodes")
        if not 0 <= self.node_rank < self.nodes:
            raise UserError(f"--node-rank must be below --nodes ({self.nodes}), not {self.node_rank}")
        if self.nodes > 1 and ":" not in self.master:
            raise UserError("a run over several nodes needs --master HOST:PORT, the same on every node")
        if self.nodes > 1 and self.engine == "threads":
            raise UserError("threads are workers of one process; a run over several nodes needs --engine processes")

    def check_hosts(self, asked: str) -> None:
        """Whether these workers can be put on the hosts of a network."""
        if self.engine == "threads":
            raise UserError(f"--network {asked} needs workers that are processes; leave --engine threads out")
        if self.nodes > 1 or find_place() is not None:
            raise UserError(
                f"--network {asked} makes its own hosts on this machine, so tutti starts the workers itself"
            )
        if self.wire.interface:
            raise UserError(f"--network {asked} gives every worker an interface of its own; leave --interface out")


def launch(function: WorkerFunction[Result], args: tuple[Any, ...], options: LaunchOptions, listener: Report) -> Any:
    """Worker 0's result; None on nodes and ranks that have no worker 0."""
    options.check()
    place = find_place()
    if place is not None:
        return _on_launched_rank(function, args, options, listener)
    if options.engine == "threads":
        return _on_threads(function, args, options, listener)
    return _Processes(options, listener).run(function, args)


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
    result = function(comm, listener if comm.rank == 0 else _say_nothing, *args)
    comm.close()
    return result if place.rank == 0 else None


def _in_turn(
    function: WorkerFunction[Result], args: tuple[Any, ...], options: LaunchOptions, listener: Report, place: Place
) -> Result | None:
    """A run of one worker: rank 0 does it as if nobody had launched it, and the others wait, however long it takes."""
    store = meet(place, options.wire.timeout)
    if place.rank > 0:
        store.wait(["done"], timedelta(days=30))
        return None
    hidden = {key: os.environ.pop(key) for key in ("RANK", "WORLD_SIZE", "SLURM_PROCID") if key in os.environ}
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
    errors: list[tuple[int, BaseException]] = []

    interrupted = threading.Event()

    def report(event: dict[str, Any]) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        listener(event)

    def work(rank: int) -> None:
        here.comm = world.comm(rank)
        try:
            results[rank] = function(here.comm, report if rank == 0 else _say_nothing, *args)
        except BaseException as error:
            errors.append((rank, error))
            world.abort(rank)

    with _computing_threads(options.threads_each()):
        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(options.workers)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            interrupted.set()
            for rank in range(options.workers):
                world.abort(rank)
            _wait_for_the_end(threads)
            raise
    if errors:
        rank, error = min(errors, key=lambda e: isinstance(e[1], PeerLost))
        raise Failure.of(rank, error, 0.0).error() from error
    return results[0]


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


def _say_nothing(event: dict[str, Any]) -> None:
    pass


# --- processes: the parent's side ------------------------------------------------------------------------------------


class _Processes:
    """The workers of this node, their events and errors, and the certainty that they end."""

    def __init__(self, options: LaunchOptions, listener: Report) -> None:
        self._options, self._listener = options, listener
        self._folder = Path(tempfile.mkdtemp(prefix="tutti-"))
        self._read = 0  # how far the events have been read
        self._stop = threading.Event()
        self._gave_up = False
        self._unnamed: set[str] = set()
        self._clock = Clock()

    def run(self, function: WorkerFunction[Result], args: tuple[Any, ...]) -> Any:
        secret = os.environ.get("TUTTI_SECRET") or new_secret().hex()
        if self._options.nodes > 1:
            secret = os.environ.get("TUTTI_SECRET", "")
        threads = self._options.threads_each()
        doors = tuple(self._options.fabric.door(rank) for rank in range(self._options.workers))
        job = _Job(function, args, self._options.wire, self._folder, os.getpid(), secret, threads, doors)
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        before = fork_server.made_by_it()
        try:
            return self._launch(job)
        except (UserError, RunFailed):
            raise
        except BaseException:  # interrupted, perhaps before all workers were there
            self._unnamed = fork_server.stop() - before
            raise
        finally:
            self._stop.set()
            self._kill_all()
            watcher.join(timeout=5)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _launch(self, job: _Job) -> Any:
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import elastic_launch

        _quiet_elastic()
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        if method == "forkserver":
            elastic = "torch.distributed.elastic.multiprocessing"
            multiprocessing.set_forkserver_preload(["torch", elastic, __name__, *self._options.preload])
            fork_server.start()
        try:
            return elastic_launch(self._config(method), _work)(job).get(0)
        except ChildFailedError as error:
            raise self._what_happened(error.failures) from None
        except RuntimeError as error:
            if "EADDRINUSE" in str(error) or "already in use" in str(error):
                raise UserError(f"the port of --master {self._options.master} is in use; choose another") from None
            raise RunFailed(f"the workers could not meet: {str(error).splitlines()[0]}") from None

    def _config(self, method: str) -> Any:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig

        options = self._options
        here = options.fabric.address
        meeting: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": f"{here}:0", "local_addr": here}
        configs: dict[str, Any] = {"is_host": True}
        if options.nodes > 1:
            meeting = {"rdzv_backend": "static", "rdzv_endpoint": options.master}
            configs = {"rank": options.node_rank}
        return LaunchConfig(
            min_nodes=options.nodes,
            max_nodes=options.nodes,
            nproc_per_node=options.workers // options.nodes,
            run_id=f"tutti-{self._folder.name}" if options.nodes == 1 else "tutti",
            max_restarts=0,
            monitor_interval=0.1,
            start_method=method,
            logs_specs=DefaultLogsSpecs(log_dir=str(self._folder / "logs")),
            rdzv_configs={**configs, "timeout": int(options.wire.timeout) + 1},
            **meeting,
        )

    def _watch(self) -> None:
        """Pass events on; when a worker has reported an error, end all of them without waiting for each other."""
        while not self._stop.wait(0.05):
            self._pass_events_on()
            failures = self._failures()
            own = [f for f in failures if not f.of_peer]
            if own or (failures and self._clock.now() - failures[0].time > 2 * _GRACE):
                self._gave_up = True
                self._kill_all()
        self._pass_events_on()

    def _pass_events_on(self) -> None:
        path = self._folder / "events"
        if path.exists():
            text = path.read_bytes()[self._read :]
            complete = text[: text.rfind(b"\n") + 1]
            self._read += len(complete)
            for line in complete.splitlines():
                self._listener(json.loads(line))

    def _failures(self) -> list[Failure]:
        """What the workers said, first causes first: own errors, then who is accused and has not spoken himself."""
        found = [Failure(**json.loads(path.read_text())) for path in self._folder.glob("error-*.json")]
        spoken = {failure.rank for failure in found}
        return sorted(found, key=lambda f: (f.of_peer, f.accused in spoken, f.time))

    def _kill_all(self) -> None:
        named = [path.read_text() for path in self._folder.glob("pid-*")]
        for process in {*named, *self._unnamed}:
            try:
                os.kill(int(process), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                continue

    def _what_happened(self, ends: dict[int, Any]) -> BaseException:
        """The first cause: a worker's own error, then one that ended without a word, then a peer that went silent."""
        failures = self._failures()
        silent = {rank: end.exitcode for rank, end in ends.items() if rank not in {f.rank for f in failures}}
        if self._gave_up:  # and killed everybody: whoever ended by himself did so before
            silent = {rank: code for rank, code in silent.items() if code != -signal.SIGKILL}
        if failures and (not failures[0].of_peer or not silent):
            return failures[0].error()
        rank, code = next(iter(silent.items()))
        if code == -signal.SIGINT:
            return KeyboardInterrupt()
        if code < 0:
            return RunFailed(f"worker {rank} was killed by signal {-code} ({signal.Signals(-code).name})")
        return RunFailed(f"worker {rank} ended with exit code {code} and without a word")


def _quiet_elastic() -> None:
    """Its log repeats in many lines what we say in one."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)


# --- processes: the worker's side ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    function: WorkerFunction[Any]
    args: tuple[Any, ...]
    wire: WireOptions
    folder: Path
    parent: int
    secret: str
    threads: int
    doors: tuple[Door, ...]

    def report(self, event: dict[str, Any]) -> None:
        with (self.folder / "events").open("a") as file:
            file.write(json.dumps(event) + "\n")


def _work(job: _Job) -> Any:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker at once; the parent says the word
    rank = int(os.environ["RANK"])
    door = job.doors[int(os.environ["LOCAL_RANK"])]
    door.enter()  # before any other thread is there, which would stay outside
    _die_with(job.parent, job.folder)
    try:
        (job.folder / f"pid-{rank}").write_text(str(os.getpid()))
    except FileNotFoundError:
        os._exit(1)  # the parent has cleared up already
    if job.secret:
        os.environ["TUTTI_SECRET"] = job.secret
    if door.own_interface:
        os.environ["GLOO_SOCKET_IFNAME"] = door.interface
    elif os.environ["MASTER_ADDR"] == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(job.threads)
    try:
        comm = connect(job.wire)
        comm.interface = door.interface if door.own_interface else ""
        result = job.function(comm, job.report if rank == 0 else _say_nothing, *job.args)
        comm.close()
    except BaseException as error:
        _tell(job, rank, error)
        os._exit(1)
    return result if rank == 0 else None


def _tell(job: _Job, rank: int, error: BaseException) -> None:
    clock = Clock()
    failure = Failure.of(rank, error, clock.now())
    try:
        draft = job.folder / f"draft-{rank}"
        draft.write_text(json.dumps(vars(failure)))
        draft.rename(job.folder / f"error-{rank}.json")
    except FileNotFoundError:
        return  # the parent has cleared up already
    if failure.of_peer:
        clock.sleep(_GRACE)


def _die_with(parent: int, folder: Path) -> None:
    """End this process when its parent is gone, however it went, and clear up what the parent cannot any more."""

    def watch() -> None:
        try:
            if hasattr(os, "pidfd_open"):
                select.select([os.pidfd_open(parent)], [], [])
            else:
                clock = Clock()
                while True:
                    os.kill(parent, 0)
                    clock.sleep(0.5)
        except ProcessLookupError:
            pass
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="tutti-watch-parent").start()
