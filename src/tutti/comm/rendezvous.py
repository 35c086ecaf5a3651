"""Which worker this process is, and the wire to the others.

A launcher says it in the environment: torchrun's (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) or Slurm's. Without one
the process is alone. Threads of one process are told by `launch`, through `here`. Workers that Tutti has started on one
machine meet in their launcher's store (`use_store`), all others in torch's TCPStore: that of torchrun, or one that
listens on the master's address alone (`host_store`).
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import socket
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

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
_given: dist.Store | None = None  # the launcher's
_opened: dict[tuple[str, int], dist.Store] = {}  # the connections of this process; worker 0's is the store itself
_ELSEWHERE = "192.0.2.1"  # an address reserved for documentation: by which interface would it be reached?


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
    store = meet(place, options.timeout, options.interface)
    if options.wire == "torch":
        backend = default_backend(torch.device(options.device))
        return TorchComm.join(place.rank, place.size, store, options.timeout, clock, backend)
    address = find_address(options.interface, place.master)
    access = Access(address, _secret(place, store, options.timeout), options.tls, options.timeout)
    ours = SharedComm if options.wire == "shared" else TcpComm
    return ours(place.rank, place.size, store, access, clock)


def use_store(store: dist.Store) -> None:
    """Let the workers meet in this one."""
    global _given
    _given = store


def meet(place: Place, timeout: float, interface: str | None = None) -> dist.Store:
    """A store for this meeting of all workers alone; one that is alone has a store to itself."""
    if place.size == 1:
        return dist.HashStore()
    store = _given if _given is not None else _open_store(place, timeout, interface)
    return dist.PrefixStore(f"tutti/{next(_meetings)}", store)


def _open_store(place: Place, timeout: float, interface: str | None) -> dist.Store:
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    key = (place.master, place.port)
    if key not in _opened:
        hosted_by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if place.rank == 0 and not hosted_by_launcher:
            _opened[key] = host_store(place.master, place.port, interface, timeout)
        else:
            _opened[key] = _reach_store(place, timeout)
    return _opened[key]


def _reach_store(place: Place, timeout: float) -> dist.Store:
    limit = timedelta(seconds=timeout)
    try:
        return dist.TCPStore(place.master, place.port, is_master=False, timeout=limit)
    except (RuntimeError, ValueError):
        where = f"{place.master}:{place.port}"
        raise PeerLost(f"worker {place.rank} could not reach the master at {where} within {timeout:g} s") from None


def host_store(master: str, port: int, interface: str | None, timeout: float) -> dist.Store:
    """torch's store for workers on several machines. It listens on one address (torch's own choice would be all), and
    nothing in it is ever unpickled."""
    address = _find_listening_address(master, interface)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family, backlog=512)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use; choose another with --master or MASTER_PORT") from None
        raise UserError(
            f"cannot listen on {address}, which is what the master {master} means here: {error.strerror}; give an "
            "address of this machine, or --interface"
        ) from None
    limit = timedelta(seconds=timeout)
    return dist.TCPStore(
        address, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _find_listening_address(master: str, interface: str | None) -> str:
    """The interface's address, or the master's. Some systems let a machine's own name mean 127.0.1.1, where no other
    machine reaches it: then the address of the way out."""
    if interface is not None:
        return find_address(interface, master)
    try:
        address = str(socket.getaddrinfo(master, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UserError(f"cannot find the address of the master {master}: {error.strerror}") from None
    if address in ("0.0.0.0", "::"):
        raise UserError(f"{master} means every interface; give the address of one as the master")
    if address.startswith("127.") and master not in (address, "localhost"):
        with suppress(UserError):
            return find_address(None, _ELSEWHERE)
    return address


def _secret(place: Place, store: dist.Store, timeout: float) -> bytes:
    """The launcher's secret; without one, worker 0 makes it and whoever can read the store can read it."""
    given = os.environ.get("TUTTI_SECRET")
    if given:
        return given.encode()
    if place.rank == 0:
        if place.size > 1:
            _warn_of_open_secret()
        store.set("secret", new_secret().hex())
    try:
        store.wait(["secret"], timedelta(seconds=timeout))
    except RuntimeError:
        raise PeerLost(f"worker 0 did not arrive within {timeout:g} s", 0) from None
    return bytes(store.get("secret"))


@cache
def _warn_of_open_secret() -> None:
    warnings.warn(
        "TUTTI_SECRET is not set, so the run's secret lies in torch's store, where everybody who reaches the master's "
        "port can read it; set the same TUTTI_SECRET for all workers (docs/security.md)",
        stacklevel=4,
    )
