"""The store in which the workers of a run meet, and what it listens on.

Workers that Tutti has started on one machine use their launcher's (`use_store`), which listens nowhere. Under torchrun
it is torchrun's. All others use torch's TCPStore, hosted by the launcher of node 0 or by worker 0, on the master's
address alone (`host_store`).
"""

from __future__ import annotations

import errno
import os
import socket
import warnings
from contextlib import suppress
from datetime import timedelta
from functools import cache

import torch.distributed as dist

from tutti.comm.base import PeerLost
from tutti.comm.forked import outlive_forks
from tutti.comm.handshake import find_address
from tutti.comm.place import Place
from tutti.errors import UserError

_ELSEWHERE = "192.0.2.1"  # an address reserved for documentation: by which interface would it be reached?
_given: dist.Store | None = None  # the launcher's
_opened: dict[tuple[str, int], dist.Store] = {}  # the connections of this process; worker 0's is the store itself


def use_store(store: dist.Store) -> None:
    """Let the workers meet in this one."""
    global _given
    _given = store


def open_store(place: Place, timeout: float, interface: str | None) -> dist.Store:
    if _given is not None:
        return _given
    key = (place.master, place.port)
    if key not in _opened:
        hosted_by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if place.rank == 0 and not hosted_by_launcher:
            _opened[key] = host_store(place.master, place.port, interface, timeout)
        else:
            _opened[key] = _reach_store(place, timeout)
        outlive_forks(_opened[key])
    return _opened[key]


def _reach_store(place: Place, timeout: float) -> dist.Store:
    limit = timedelta(seconds=timeout)
    try:
        return dist.TCPStore(place.master, place.port, is_master=False, timeout=limit)
    except (RuntimeError, ValueError):
        where = f"{place.master}:{place.port}"
        raise PeerLost(f"worker {place.rank} could not reach the master at {where} within {timeout:g} s") from None


def host_store(master: str, port: int, interface: str | None, timeout: float) -> dist.Store:
    """torch's own choice would be to listen on all interfaces. Nothing in this store is ever unpickled."""
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


@cache
def warn_of_open_secret() -> None:
    """Once per process."""
    warnings.warn(
        "TUTTI_SECRET is not set, so the run's secret lies in torch's store, where everybody who reaches the master's "
        "port can read it; set the same TUTTI_SECRET for all workers (docs/security.md)",
        stacklevel=5,
    )
