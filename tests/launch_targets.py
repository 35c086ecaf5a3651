"""What the launch tests run on workers: importable, so that processes can find it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.launch import Report


def add_ranks(comm: Comm, report: Report, note: str = "") -> dict[str, Any]:
    total = torch.tensor([float(comm.rank)])
    comm.all_reduce(total)
    report({"event": "done", "note": note})
    return {"sum": float(total), "size": comm.size, "wire": comm.wire, "threads": torch.get_num_threads()}


def misbehave(comm: Comm, _: Report, how: str, culprit: int) -> None:
    """One worker goes wrong between two barriers; the others wait for it."""
    comm.barrier()
    if comm.rank == culprit:
        if how == "raise":
            raise LookupError("the dog ate it")
        if how == "user":
            raise UserError("this cannot work; that would")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "exit":
            os._exit(7)
    comm.barrier()


def leave_pids(comm: Comm, _: Report, folder: str) -> None:
    """Write this worker's pid down, then work until the end of the world."""
    with open(os.path.join(folder, f"worker-{comm.rank}"), "w") as file:
        file.write(str(os.getpid()))
    while True:
        comm.barrier()
        time.sleep(0.05)
