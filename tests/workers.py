"""Runs a function on several workers at once: as threads over either of our wires, or as processes over torch's."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tutti.comm.base import Clock, Comm, PeerLost
from tutti.comm.certificate import make_certificate
from tutti.comm.handshake import Access, Tls
from tutti.comm.shared import SharedComm
from tutti.comm.tcp import TcpComm
from tutti.comm.threads import World
from tutti.comm.torch import TorchComm

SIZES = (1, 2, 3, 5, 8)
PATIENCE = 50.0  # seconds until a worker that has not come back counts as hung

# a server process that has imported torch once makes every further process cheap
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch", "tutti"])


def on_threads(size: int, function: Callable[[Comm], Any], strict: bool = False, **world: Any) -> list[Any]:
    """The results of `function(comm)` on `size` threads, by rank; or the first error."""
    shared = World(size, strict=strict, **{"timeout": 20.0} | world)

    def work(rank: int) -> Any:
        try:
            return function(shared.comm(rank))
        except BaseException:
            shared.abort(rank)
            raise

    return side_by_side(size, work)


def on_tcp(
    size: int,
    function: Callable[[Comm], Any],
    clock: Clock | None = None,
    mesh: str = "main",
    kind: type[TcpComm] = TcpComm,
    **access: Any,
) -> list[Any]:
    """The same over loopback sockets: every thread has a TcpComm of its own, which is closed behind it."""
    store = dist.HashStore()
    pass_for = Access(**{"address": "127.0.0.1", "secret": b"known to all", "timeout": 20.0} | access)

    def work(rank: int) -> Any:
        comm = kind(rank, size, store, pass_for, clock, mesh)
        try:
            return function(comm)
        finally:
            comm.close()

    return side_by_side(size, work)


def on_shared(size: int, function: Callable[[Comm], Any], **options: Any) -> list[Any]:
    """The same through memory that the threads map as processes would."""
    return on_tcp(size, function, kind=SharedComm, **options)


def on_torch(size: int, function: Callable[[Comm], Any]) -> list[Any]:
    """The same on processes joined by gloo; `function` must be importable, and what it returns picklable."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = []
    for rank in range(size):
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=_torch_worker, args=(rank, size, store.port, function, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    return side_by_side(size, lambda rank: _result_of(*started[rank]))


def on_group(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """`function(*args)` on processes that have called init_process_group as a user's script does, without a launcher;
    `function` must be importable, and what it returns picklable."""
    return _on_processes(size, _group_worker, function, args)


def on_launched(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """The same on processes that find what torchrun says in their environment, and have no process group."""
    return _on_processes(size, _launched_worker, function, args)


def _on_processes(size: int, worker: Callable[..., Any], function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = []
    for rank in range(size):
        ours, theirs = processes.Pipe(duplex=False)
        job = (worker, theirs, rank, size, store.port, function, args)
        process = processes.Process(target=_worker, args=job)  # no daemon: it may have children of its own
        process.start()
        theirs.close()
        started.append((process, ours))
    return side_by_side(size, lambda rank: _result_of(*started[rank]))


def make_tls(folder: Path, name: str = "run") -> Tls:
    """A certificate that signs itself."""
    return make_certificate(folder / name)


def side_by_side(size: int, work: Callable[[int], Any]) -> list[Any]:
    """`work(rank)` on `size` threads; a consequence of another worker's error is raised only if there is no other."""
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for error in sorted(errors, key=lambda e: isinstance(e, PeerLost)):
        raise error
    hung = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    assert not hung, f"workers {hung} did not come back within {PATIENCE:g} s"
    return results


def _torch_worker(rank: int, size: int, port: int, function: Callable[[Comm], Any], pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        comm = TorchComm.join(rank, size, store, timeout=30.0)
        result = function(comm)
        comm.barrier()
        comm.close()
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def _worker(work: Callable[..., Any], pipe: Connection, *job: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        pipe.send((True, work(*job)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def _group_worker(rank: int, size: int, port: int, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    result = function(*args)
    dist.barrier()
    dist.destroy_process_group()
    return result


def _launched_worker(rank: int, size: int, port: int, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return function(*args)


def _result_of(process: Any, pipe: Connection) -> Any:
    with pipe:
        try:
            good, result = pipe.recv() if pipe.poll(PATIENCE) else (False, "it did not come back")
        except EOFError:
            good, result = False, "it ended without a word"
    if not good:
        process.kill()
    process.join()
    assert good, f"a worker process failed:\n{result}"
    return result
