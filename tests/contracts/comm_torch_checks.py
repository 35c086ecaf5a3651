"""The checks over a process group of torch's, all of them in one go: to be called in every process of a world."""

from __future__ import annotations

import traceback

import torch.distributed as dist
from contracts.comm_checks import OPERATIONS, Check
from contracts.comm_message_checks import FORKS, MESSAGES
from workers import SIZES

from tutti.comm.base import Comm
from tutti.comm.metered import metered
from tutti.comm.torch import TorchComm


def everything_at_every_size(comm: Comm) -> dict[str, str]:
    """Every check over a process group; the first so many workers form the smaller worlds. How each one went."""
    outcomes = {}
    for size in SIZES:
        group = dist.new_group(list(range(size)))
        if comm.rank < size:
            wire = TorchComm(group, "gloo", comm.timeout, comm.clock)
            for check in checks_of_torch(size):
                outcomes[f"{check.__name__} {size}"] = _outcome(check, wire)
            if size == 3:
                for check in checks_of_torch(size):
                    outcomes[f"{check.__name__} metered"] = _outcome(check, metered(wire))
        comm.barrier()
    return outcomes


def checks_of_torch(size: int) -> list[Check]:
    """A fork is a group of the whole world, so a part of it cannot make one; messages need somebody to go to."""
    checks = [*OPERATIONS, *(MESSAGES if size > 1 else [])]
    return checks if size == max(SIZES) else [check for check in checks if check not in FORKS]


def _outcome(check: Check, comm: Comm) -> str:
    try:
        check(comm)
    except Exception:
        return traceback.format_exc()
    return "passed"
