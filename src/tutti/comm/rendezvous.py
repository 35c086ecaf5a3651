"""Which worker this process is, and the wire to the others.

A launcher says it in the environment: torchrun's (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) or Slurm's. Without one
the process is alone. Threads of one process are told by `launch`, through `here`. The workers meet in torch's store.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from tutti.clock import Clock
from tutti.comm.base import Comm, PeerLost
from tutti.comm.handshake import Access, Tls, find_address, new_secret
from tutti.comm.shared import SharedComm
from tutti.comm.tcp import TcpComm
from tutti.comm.torch import TorchComm, default_backend
from tutti.errors import UserError

WIRES = ("shared", "tcp", "torch")
_meetings = itertools.count()  # in the same order on every worker
here = threading.local()  # .comm: the wire of a worker that is a thread of this process


@dataclass(frozen=True)
class WireOptions:
    """How to talk: the wire, its interface, TLS, and how long a silent peer is waited for."""

    wire: str = "shared"
    interface: str | None = None
    tls: Tls | None = None
    timeout: float = 60.0
    device: str = "cpu"  # of the tensors: chooses torch's backend


@dataclass(frozen=True)
class Place:
    """Where a launcher has put this process."""

    rank: int
    size: int
    local_rank: int
    master: str
    port: int


def find_place(environment: dict[str, str] | None = None) -> Place | None:
    """What the launcher's environment says; None where there is no launcher."""
    env = dict(os.environ) if environment is None else environment
    if "RANK" in env and "WORLD_SIZE" in env:
        return Place(
            rank=int(env["RANK"]),
            size=int(env["WORLD_SIZE"]),
            local_rank=int(env.get("LOCAL_RANK", 0)),
            master=env.get("MASTER_ADDR", "127.0.0.1"),
            port=int(env.get("MASTER_PORT", 29500)),
        )
    if "SLURM_PROCID" in env and int(env.get("SLURM_NTASKS", 1)) > 1:
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "127.0.0.1"
        return Place(
            rank=int(env["SLURM_PROCID"]),
            size=int(env["SLURM_NTASKS"]),
            local_rank=int(env.get("SLURM_LOCALID", 0)),
            master=env.get("MASTER_ADDR") or _first_node(nodes),
            port=int(env.get("MASTER_PORT") or 20000 + int(env.get("SLURM_JOB_ID", 0)) % 20000),
        )
    return None


def _first_node(nodes: str) -> str:
    """The first host of Slurm's short form: node[03-05,07],gpu1 -> node03."""
    return re.sub(r"\[(\w+)[^]]*]", r"\1", nodes).partition(",")[0]


def connect(options: WireOptions | None = None, clock: Clock | None = None) -> Comm:
    """The wire of this worker; every worker of the run calls this together."""
    if getattr(here, "comm", None) is not None:
        comm: Comm = here.comm
        return comm
    options = options or WireOptions()
    if options.wire not in WIRES:
        raise UserError(f"there is no wire '{options.wire}'; there is {', '.join(WIRES)}")
    place = find_place() or Place(0, 1, 0, "127.0.0.1", 0)
    store = meet(place, options.timeout)
    if options.wire == "torch":
        backend = default_backend(torch.device(options.device))
        return TorchComm.join(place.rank, place.size, store, options.timeout, clock, backend)
    address = find_address(options.interface, place.master)
    access = Access(address, _secret(place, store, options.timeout), options.tls, options.timeout)
    ours = SharedComm if options.wire == "shared" else TcpComm
    return ours(place.rank, place.size, store, access, clock)


def meet(place: Place, timeout: float) -> dist.Store:
    """A store for this meeting of all workers alone; one that is alone has a store to itself."""
    if place.size == 1:
        return dist.HashStore()
    return dist.PrefixStore(f"tutti/{next(_meetings)}", _open_store(place, timeout))


def _open_store(place: Place, timeout: float) -> dist.Store:
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    hosted_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        return dist.TCPStore(
            place.master,
            place.port,
            place.size,
            is_master=place.rank == 0 and not hosted_by_agent,
            timeout=timedelta(seconds=timeout),
            multi_tenant=True,
        )
    except (RuntimeError, ValueError) as error:
        where = f"{place.master}:{place.port}"
        if "EADDRINUSE" in str(error) or "already in use" in str(error):
            raise UserError(f"port {place.port} is in use; choose another with --master or MASTER_PORT") from None
        raise PeerLost(f"worker {place.rank} could not reach the master at {where} within {timeout:g} s") from None


def _secret(place: Place, store: dist.Store, timeout: float) -> bytes:
    """The launcher's secret; without one, worker 0 makes it and whoever can read the store can read it."""
    given = os.environ.get("TUTTI_SECRET")
    if given:
        return given.encode()
    if place.rank == 0:
        store.set("secret", new_secret().hex())
    try:
        store.wait(["secret"], timedelta(seconds=timeout))
    except RuntimeError:
        raise PeerLost(f"worker 0 did not arrive within {timeout:g} s") from None
    return bytes(store.get("secret"))
