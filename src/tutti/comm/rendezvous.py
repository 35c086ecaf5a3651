"""Which worker this process is, and the wire to the others.

A thread of `launch` has its wire already (`here`). A process group of torch's that is given or initialised says rank
and size, and its store is where the workers meet. Otherwise the launcher's environment does (place.py), and the workers
meet in a store (stores.py). Without any of these the process is alone.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from tutti.clock import Clock
from tutti.comm.base import SILENCE, Comm, PeerLost
from tutti.comm.handshake import Access, Members, Tls, find_address, new_secret
from tutti.comm.place import Place as Place
from tutti.comm.place import find_place as find_place
from tutti.comm.shared import SharedComm
from tutti.comm.stores import open_store, warn_of_open_secret
from tutti.comm.tcp import TcpComm
from tutti.comm.torch import TorchComm, default_backend, made_by_us
from tutti.errors import UserError

WIRES = ("shared", "tcp", "torch")
ALONE = Place(0, 1, 0, "127.0.0.1", 0)
_LONGEST = 10**6  # seconds; poll counts milliseconds in 31 bits
_meetings: Counter[str] = Counter()  # so far, by who has met
here = threading.local()  # .comm: the wire of a worker that is a thread of this process


@dataclass(frozen=True)
class WireOptions:
    """How to talk: the wire, its interface, TLS, and how long a silent peer is waited for."""

    wire: str = "shared"
    interface: str | None = None
    tls: Tls | None = None
    timeout: float = SILENCE
    device: str = "cpu"  # of the tensors: chooses torch's backend


class Meeting(NamedTuple):
    """Who this worker is, and the store in which it finds the others."""

    place: Place
    store: dist.Store
    members: Members | None = None  # where they are not all workers of torch's process group


def connect(
    options: WireOptions | None = None, clock: Clock | None = None, group: dist.ProcessGroup | None = None
) -> Comm:
    """The wire of this worker; every worker of the run (of the group, where one is given) calls this together."""
    if getattr(here, "comm", None) is not None:
        if group is not None:
            raise UserError("workers that are threads have no process group: leave group out")
        comm: Comm = here.comm
        return comm
    options = options or WireOptions()
    if options.wire not in WIRES:
        raise UserError(f"there is no wire '{options.wire}'; there is {', '.join(WIRES)}")
    check_timeout(options.timeout)
    if group is None and dist.is_initialized() and not made_by_us():
        group = dist.group.WORLD
    if group is not None:
        meeting = meet_in_group(group, options.wire)
    else:
        place = find_place() or ALONE
        meeting = Meeting(place, meet(place, options.timeout, options.interface))
    return _build(meeting, options, clock)


def _build(meeting: Meeting, options: WireOptions, clock: Clock | None) -> Comm:
    place, store, members = meeting
    if options.wire == "torch":
        backend = default_backend(torch.device(options.device))
        return TorchComm.join(place.rank, place.size, store, options.timeout, clock, backend, members)
    address = find_address(options.interface, place.master)
    access = Access(address, _secret(place, store, options.timeout), options.tls, options.timeout, members)
    ours = SharedComm if options.wire == "shared" else TcpComm
    return ours(place.rank, place.size, store, access, clock)


def check_timeout(timeout: float) -> None:
    """A number of seconds that every clock can count."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not 0 < timeout <= _LONGEST:
        raise UserError(
            f"timeout must be a number of seconds above 0 and at most {_LONGEST:,}, not {timeout!r}; it says how long "
            f"a silent worker is waited for ({SILENCE:g} by default)"
        )


# --- workers that a launcher has started -----------------------------------------------------------------------------


def meet(place: Place, timeout: float, interface: str | None = None) -> dist.Store:
    """A store for this meeting of all workers alone; one that is alone has a store to itself."""
    if place.size == 1:
        return dist.HashStore()
    return dist.PrefixStore(f"tutti/{_next_meeting('launcher')}", open_store(place, timeout, interface))


# --- workers of one of torch's process groups ------------------------------------------------------------------------


def meet_in_group(group: dist.ProcessGroup, wire: str) -> Meeting:
    """This worker's place in the group, and a store that is its members' alone."""
    ranks = _ranks_of(group)
    whole = len(ranks) == dist.get_world_size()
    rank = ranks.index(dist.get_rank())
    if len(ranks) == 1:
        return Meeting(Place(0, 1, 0, "127.0.0.1", 0), dist.HashStore(), None if whole else Members((ranks[0],), "1"))
    # the only way to the store that the workers have met in; torch's own modules take it too
    beneath = dist.distributed_c10d._get_default_store()
    if beneath is None:
        if wire == "torch" and whole:
            return Meeting(Place(rank, len(ranks), 0, "", 0), dist.HashStore())
        raise UserError("torch's process group has no store (mpi): use wire='torch' and all of its workers")
    key = "all" if whole else "-".join(map(str, ranks))
    name = f"tutti/group/{zlib.crc32(key.encode())}/{group.group_name}/{_next_meeting(f'{group.group_name} {key}')}"
    place = Place(rank, len(ranks), 0, _master_of(beneath), 0)
    return Meeting(place, dist.PrefixStore(name, beneath), None if whole else Members(tuple(ranks), name))


def _ranks_of(group: object) -> list[int]:
    if not dist.is_initialized():
        raise UserError("group= needs torch's process group: call torch.distributed.init_process_group first")
    if group == dist.GroupMember.NON_GROUP_MEMBER or (
        isinstance(group, dist.ProcessGroup) and dist.get_rank(group) < 0
    ):
        raise UserError(
            f"this process (rank {dist.get_rank()}) is no member of the group given: only its members may call "
            "distribute(..., group=...)"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise UserError(
            f"group must be a process group of torch.distributed.new_group, not {type(group).__name__}: {group!r}"
        )
    ranks: list[int] = dist.get_process_group_ranks(group)
    return ranks


def _master_of(store: dist.Store) -> str:
    """The host that the workers have met at, whose side of this machine is listened on."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None)  # of a TCPStore
    return str(host or os.environ.get("MASTER_ADDR") or "127.0.0.1")


def _next_meeting(who: str) -> int:
    """The number of a meeting of the same workers, counted in the same order by all of them."""
    number = _meetings[who]
    _meetings[who] += 1
    return number


def _secret(place: Place, store: dist.Store, timeout: float) -> bytes:
    """The launcher's secret; without one, worker 0 makes it and whoever can read the store can read it."""
    given = os.environ.get("TUTTI_SECRET")
    if given:
        return given.encode()
    if place.rank == 0:
        if place.size > 1:
            warn_of_open_secret()
        store.set("secret", new_secret().hex())
    try:
        store.wait(["secret"], timedelta(seconds=timeout))
    except RuntimeError:
        raise PeerLost(f"worker 0 did not arrive within {timeout:g} s", 0) from None
    return bytes(store.get("secret"))
