"""A worker's process, from the fork to its end: it reads its job, runs it and sends back what came of it.

A thread sends a sign of life every second, so that the launcher knows a worker that is stopped from one that works. A
worker that fails reports it and keeps its connections open until the launcher ends it: a cut connection would make
others complain of this worker instead of the cause.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import spawn
from typing import Any

import torch

from tutti.channel import ALIVE, EVENT, FAILURE, RESULT, WorkerEnd
from tutti.clock import Clock
from tutti.comm.rendezvous import WireOptions, connect
from tutti.comm.stores import use_store
from tutti.errors import UserError
from tutti.failures import Failure
from tutti.launch_options import WorkerFunction, say_nothing
from tutti.launcher_store import LauncherStore
from tutti.machine import keep_memory
from tutti.networks.base import Door

_SIGN_OF_LIFE = 1.0  # seconds between two
_importing = False  # whether this process is a worker that has not finished importing the user's script


@dataclass(frozen=True)
class Job:
    """What all workers of a run have in common."""

    function: WorkerFunction[Any]
    args: tuple[Any, ...]
    wire: WireOptions
    threads: int
    doors: tuple[Door, ...]

    def pack(self) -> bytes:
        try:
            job = pickle.dumps(self)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                "workers that are processes need a function that can be imported and arguments that can be pickled: "
                f"{error}"
            ) from None
        preparation = spawn.get_preparation_data("tutti-worker")
        preparation["authkey"] = bytes(preparation["authkey"])  # refuses to be pickled; nobody but the worker gets it
        return pickle.dumps((preparation, job))


@dataclass(frozen=True)
class Start:
    """Which worker this is; without a port the workers meet in the launcher's store."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    master: str
    port: int | None
    secret: str
    environment: dict[str, str]

    def enter(self) -> None:
        """The environment, as torchrun would set it."""
        os.environ.clear()
        os.environ.update(self.environment)
        places = {"RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_RANK": self.local_rank}
        os.environ.update({name: str(value) for name, value in places.items()})
        os.environ.update({"LOCAL_WORLD_SIZE": str(self.local_size), "MASTER_ADDR": self.master})
        if self.port is not None:
            os.environ.update({"MASTER_PORT": str(self.port), "TORCHELASTIC_USE_AGENT_STORE": "True"})
        if self.secret:
            os.environ["TUTTI_SECRET"] = self.secret


def check_not_importing() -> None:
    if _importing:
        raise UserError(
            "a worker imports your script, which then launches workers: put the launch under "
            "`if __name__ == '__main__':`"
        )


def pack_result(result: Any) -> bytes:
    """Plain data, so that reading it back runs no code."""
    packed = io.BytesIO()
    try:
        torch.save(result, packed)
        unpack_result(packed.getvalue())
    except (pickle.PickleError, AttributeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            "worker 0's result must be plain data (numbers, text, bytes, tensors, lists, tuples, dictionaries): "
            f"{reason}"
        ) from None
    return packed.getvalue()


def unpack_result(packed: bytes) -> Any:
    return torch.load(io.BytesIO(packed), weights_only=True)


def work(connection: socket.socket) -> None:
    """The whole life of a worker; it never returns."""
    end, rank = WorkerEnd(connection), -1
    try:
        start = Start(**json.loads(end.receive()[1]))
        rank = start.rank
        start.enter()
        _run(end, start, _read_job(end.receive()[1]))
    except BaseException as error:
        with suppress(OSError):
            end.send(FAILURE, json.dumps(vars(Failure.of(rank, error, Clock().now()))).encode())
            _flush()
            end.wait_for_hang_up(None)
        os._exit(1)
    _leave()


def _read_job(packed: bytes) -> Job:
    """From the process that started this one, over a channel that nobody else has."""
    global _importing
    preparation, job = pickle.loads(packed)
    _importing = True
    spawn.prepare(preparation)  # sys.path, and the user's script as a module
    _importing = False
    found: Job = pickle.loads(job)
    return found


def _run(end: WorkerEnd, start: Start, job: Job) -> None:
    door = job.doors[start.local_rank]
    door.enter()  # before any other thread is there, which would stay outside
    every = min(_SIGN_OF_LIFE, job.wire.timeout / 4)
    threading.Thread(target=_give_signs_of_life, args=(end, every), daemon=True, name="tutti-alive").start()
    if start.port is None:
        use_store(LauncherStore(end))
    _choose_interface(start, job, door)
    torch.set_num_threads(job.threads)
    keep_memory()

    def report(event: dict[str, Any]) -> None:
        end.send(EVENT, json.dumps(event).encode())

    comm = connect(job.wire)
    comm.interface = door.interface if door.own_interface else ""
    result = job.function(comm, report if start.rank == 0 else say_nothing, *job.args)
    end.send(RESULT, pack_result(result) if start.rank == 0 else b"")
    with suppress(Exception):  # the result counts, however the others left
        comm.close()


def _choose_interface(start: Start, job: Job, door: Door) -> None:
    """For gloo, which listens on what a host's name means if nobody tells it."""
    asked = job.wire.interface
    if door.own_interface:
        os.environ["GLOO_SOCKET_IFNAME"] = door.interface
    elif start.master in ("127.0.0.1", "localhost"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    elif asked in [name for _, name in socket.if_nameindex()]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", asked or "")


def _give_signs_of_life(end: WorkerEnd, every: float) -> None:
    while not end.wait_for_hang_up(every):
        with suppress(OSError):
            end.send(ALIVE)
    os._exit(1)


def _leave() -> None:
    """What Python would wait for at its end; the rest of its end is left out, since threads may be inside torch."""
    with suppress(Exception):
        for child in multiprocessing.active_children():
            if child.daemon:
                child.terminate()
            child.join()
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
    _flush()
    os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
