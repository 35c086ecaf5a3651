"""All workers of a mesh in one thread's hands, so that a test can say who does what and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from workers import side_by_side

from tutti.comm.handshake import Access
from tutti.comm.tcp import TcpComm

C = TypeVar("C", bound=TcpComm)


@contextmanager
def mesh(wire: type[C], size: int, **access: Any) -> Iterator[list[C]]:
    """All ends of one mesh in one thread's hands."""
    store = dist.HashStore()
    pass_for = Access(**{"address": "127.0.0.1", "secret": b"known to all", "timeout": 20.0} | access)
    comms = side_by_side(size, lambda rank: wire(rank, size, store, pass_for))
    try:
        yield comms
    finally:
        for comm in comms:
            comm.close()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    assert time.perf_counter() - begun < seconds


def cut(comm: TcpComm) -> None:
    """End as a crashed process does: the kernel closes the sockets and nobody says goodbye; memory stays."""
    for link in comm._links.values():
        link.connection.close()
    comm._links.clear()
