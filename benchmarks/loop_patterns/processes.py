"""Sets of worker processes that run patterns: forked from a server that has torch already, killed when they hang.

A worker whose pattern raised ends as a script would, so that the others notice; its set is not used again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_GRACE = 1.5  # seconds of silence after which a worker that is done leaves
_kept: list[Any] = []  # in a worker: what must outlive its pattern

Flat = dict[str, list[Any]]  # numpy arrays, which go through a pipe without shared memory


@dataclass
class Report:
    """How one worker ended: "done", "raised", "crashed" or "hung"."""

    rank: int
    how: str
    result: Flat | None = None
    kinds: list[str] = field(default_factory=list)  # the error's class and what it inherits from
    message: str = ""
    trace: str = ""
    seconds: float = 0.0


class WorkerSet:
    """Some workers that wait for patterns."""

    def __init__(self, size: int) -> None:
        self.size, self.usable = size, True
        self._folder = Path(tempfile.mkdtemp(prefix="tutti-loops-"))
        self._count = 0
        self._complete = True  # none has left
        context = multiprocessing.get_context("forkserver")
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # the server's own
        context.set_forkserver_preload(["loop_patterns.preload"])
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, rank, size), daemon=False)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, name: str, method: str, variant: str, limit: float) -> list[Report]:
        """Every worker's report; the set is only usable afterwards if all of them are done."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        for pipe in self._pipes:
            pipe.send((name, method, variant, str(folder)))
        begun = time.monotonic()
        reports: dict[int, Report] = {}
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while waiting and (left := begun + limit - time.monotonic()) > 0:
            ready = wait(list(waiting), min(left, _GRACE))
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[arg-type]
                reports[rank] = self._read(pipe, rank)  # type: ignore[arg-type]
                reports[rank].seconds = time.monotonic() - begun
            if not ready:
                self._let_leave([rank for rank, report in reports.items() if report.how == "done"])
        for rank in waiting.values():
            reports[rank] = Report(rank, "hung", seconds=limit)
        self.usable = self._complete and all(report.how == "done" for report in reports.values())
        if not self.usable:
            self.close()
        return [reports[rank] for rank in range(self.size)]

    def _let_leave(self, ranks: list[int]) -> None:
        """These have come to the end of their script long before the others: their processes end."""
        self._complete = self._complete and not ranks
        for rank in ranks:
            with contextlib.suppress(OSError):
                self._pipes[rank].send(None)

    def _read(self, pipe: Connection, rank: int) -> Report:
        try:
            report: Report = pipe.recv()
            return report
        except (EOFError, ConnectionResetError):
            self._processes[rank].join(2)
            code = self._processes[rank].exitcode
            return Report(rank, "crashed", message=f"the process ended with code {code}")

    def close(self) -> None:
        import shutil

        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


# --- in the worker ---------------------------------------------------------------------------------------------------


def _work(pipe: Connection, rank: int, size: int) -> None:
    import torch

    torch.set_num_threads(1)
    _be_quiet()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return
        if command is None:
            os._exit(0)
        _take_down()
        os.environ.update(MASTER_ADDR="127.0.0.1")
        report = _run(*command, rank, size)
        pipe.send(report)
        if report.how != "done":
            sys.stdout.flush()
            os._exit(1)  # as the end of a script: the sockets close, whatever a thread is waiting for


def _take_down() -> None:
    """Of the pattern before: its process group, and what is bound to it, when all workers are done with it."""
    import torch.distributed as dist

    _kept.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def _run(name: str, method: str, variant: str, folder: str, rank: int, size: int) -> Report:
    import torch
    import torch.distributed as dist

    from loop_patterns import registry
    from loop_patterns.session import Session

    session = Session(method, rank, size, folder, variant)
    try:
        os.environ["MASTER_PORT"] = str(_agree_on_port(folder, rank))
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=3600),
        )
        dist.barrier()  # or one that refuses at once would be gone before the others are connected
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            result = registry.load()[name].function(session)
        for handle in session.handles:
            handle.close()
        _kept.append(session)
        return Report(rank, "done", _flatten(result))
    except BaseException as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return Report(rank, "raised", None, kinds, str(error), "".join(traceback.format_exception(error))[-4000:])


def _agree_on_port(folder: str, rank: int) -> int:
    """A free port that worker 0 has found, for what looks at MASTER_PORT."""
    import socket

    path = Path(folder, "port")
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            Path(folder, "port.new").write_text(str(probe.getsockname()[1]))
        Path(folder, "port.new").rename(path)
    while not path.exists():
        time.sleep(0.002)
    return int(path.read_text())


def _flatten(result: dict[str, Any]) -> Flat:
    import torch

    def array(value: Any) -> Any:
        tensor = torch.as_tensor(value).detach()
        return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).clone().numpy()

    return {key: [array(value) for value in values] for key, values in result.items()}


def _be_quiet() -> None:
    """What workers print on their way out is not for the table."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.dup2(null, 1)
