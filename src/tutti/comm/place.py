"""Which worker this process is, as its launcher says in the environment.

torchrun sets RANK and WORLD_SIZE; mpirun OMPI_COMM_WORLD_* (Open MPI) or PMI_* and MPI_LOCAL* (MPICH, Intel MPI); Slurm
SLURM_*. The first of these that is complete counts: torchrun or mpirun may run inside an allocation of Slurm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tutti.errors import UserError

_PORT = 29500  # torchrun's own default
_MPI = (  # rank, size, rank on this host, workers on this host
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
VARIABLES = ("RANK", "WORLD_SIZE", *(name for names in _MPI for name in names[:2]), "SLURM_PROCID")  # a process
# without these has no launcher


@dataclass(frozen=True)
class Place:
    """Where a launcher has put this process."""

    rank: int
    size: int
    local_rank: int
    master: str
    port: int


def find_place(environment: Mapping[str, str] | None = None) -> Place | None:
    """What the launcher's environment says; None where there is no launcher."""
    env = os.environ if environment is None else environment
    if "RANK" in env and "WORLD_SIZE" in env:
        master = env.get("MASTER_ADDR", "127.0.0.1")
        return _place(env, "RANK", "WORLD_SIZE", "LOCAL_RANK", master, _number(env, "MASTER_PORT", _PORT))
    place = _launched_by_another(env)
    _refuse_half_a_place(env, place)
    return place


def _launched_by_another(env: Mapping[str, str]) -> Place | None:
    for rank, size, local_rank, local_size in _MPI:
        if rank in env and size in env:
            if _number(env, size) == 1:
                return None
            master = _master_of_mpi(env, _number(env, size), _number(env, local_size, 0))
            return _place(env, rank, size, local_rank, master, _number(env, "MASTER_PORT", _PORT))
    if "SLURM_PROCID" in env and _number(env, "SLURM_NTASKS", 1) > 1:
        port = _number(env, "MASTER_PORT", 20000 + _number(env, "SLURM_JOB_ID", 0) % 20000)
        master = env.get("MASTER_ADDR") or _first_node(env) or "127.0.0.1"
        return _place(env, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", master, port)
    return None


def _place(env: Mapping[str, str], rank: str, size: str, local_rank: str, master: str, port: int) -> Place:
    place = Place(_number(env, rank), _number(env, size, least=1), _number(env, local_rank, 0), master, port)
    if place.rank >= place.size:
        raise UserError(
            f"{rank} is {place.rank} and {size} is {place.size}: ranks go from 0 to {size} - 1; start this worker with "
            "torchrun, mpirun or Slurm, which set both"
        )
    if not 0 < port < 2**16:
        raise UserError(f"MASTER_PORT is {port}: a port is a number from 1 to 65535")
    return place


def _refuse_half_a_place(env: Mapping[str, str], place: Place | None) -> None:
    """RANK or WORLD_SIZE alone: training alone would be a silent mistake, unless another launcher says the same."""
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if name not in env:
            continue
        number = _number(env, name)
        known = 1 if place is None else place.size
        if place is None and (name == "RANK" or number != 1):
            raise UserError(
                f"{name} is {number} and {other} is not set: set both (torchrun and mpirun do), or neither to train "
                "with one worker"
            )
        if place is not None and number != (place.rank if name == "RANK" else known):
            raise UserError(f"{name} is {number}, but the launcher says {place}; leave {name} out or correct it")


def _number(env: Mapping[str, str], name: str, default: int | None = None, least: int = 0) -> int:
    text = env.get(name, "")
    if text == "" and default is not None:
        return default
    if not re.fullmatch(r"\s*\d+\s*", text) or int(text) < least:
        raise UserError(f"{name} is '{text}': it must be a whole number of at least {least}")
    return int(text)


def _master_of_mpi(env: Mapping[str, str], size: int, size_here: int) -> str:
    """mpirun names no master: it is this machine if all workers are on it."""
    given = env.get("MASTER_ADDR")
    if given:
        return given
    if size_here in (0, size):
        return "127.0.0.1"
    node = _first_node(env)
    if node:
        return node
    raise UserError(
        f"mpirun has started {size} workers on several hosts and MASTER_ADDR is not set: give the address of worker "
        "0's host with mpirun -x MASTER_ADDR=HOST (Open MPI) or -genv MASTER_ADDR HOST (MPICH, Intel MPI)"
    )


def _first_node(env: Mapping[str, str]) -> str:
    """The first host of Slurm's short form: node[03-05,07],gpu1 -> node03."""
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    return re.sub(r"\[(\w+)[^]]*]", r"\1", nodes).partition(",")[0]
