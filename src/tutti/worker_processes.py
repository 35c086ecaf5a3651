"""Workers that are processes of this machine: started, listened to, and ended with certainty.

They are started by torch's elastic launcher, forked from a server that has imported torch once. No port is chosen by
hand. Parent and workers talk through files in a folder of the run: each worker's process id, its error if it has one,
and worker 0's events. Nothing is left running: workers die when their parent does, whatever killed it.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tutti import fork_server
from tutti.clock import Clock
from tutti.comm.handshake import new_secret
from tutti.comm.rendezvous import WireOptions, connect
from tutti.errors import RunFailed, UserError
from tutti.failures import Failure
from tutti.launch_options import LaunchOptions, Report, Result, WorkerFunction, say_nothing
from tutti.machine import keep_memory
from tutti.networks.base import Door

_GRACE = 0.6  # seconds a worker that lost a peer waits, so that the peer's own error is found first


# --- the parent's side -----------------------------------------------------------------------------------------------


class WorkerProcesses:
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


# --- the worker's side -----------------------------------------------------------------------------------------------


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
    keep_memory()
    try:
        comm = connect(job.wire)
        comm.interface = door.interface if door.own_interface else ""
        result = job.function(comm, job.report if rank == 0 else say_nothing, *job.args)
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
