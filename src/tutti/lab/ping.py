"""Two workers of this machine really exchange: how long a small all-reduce takes, and how fast a large one is.

The ring over two workers sends half of the buffer each way, twice: a small one is a round trip, and of a large one
every worker sends as many bytes as it has. The same ring runs on our wire and on torch's (gloo), in the same processes.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tutti.collectives.ring import Ring
from tutti.comm.base import Comm
from tutti.comm.rendezvous import WireOptions
from tutti.launch import LaunchOptions, Report, launch

SMALL, LARGE = 4 * 2**10, 4 * 2**20  # bytes
_WARM_UP, _SMALL_TIMES, _LARGE_TIMES = 3, 60, 12


@dataclass(frozen=True)
class Ping:
    """What one wire can do between two workers."""

    wire: str
    round_trip: float  # seconds of an all-reduce of 4 KiB
    bandwidth: float  # bytes per second and direction, in an all-reduce of 4 MiB
    right: bool  # the sums were


def ping(timeout: float = 10.0) -> list[Ping]:
    """Start two workers and time both wires; `RunFailed` or `UserError` where they cannot meet."""
    options = LaunchOptions(workers=2, wire=WireOptions(timeout=timeout))
    return [Ping(**row) for row in launch(exchange_on_both, (), options, _hear_nothing)]


def exchange_on_both(comm: Comm, report: Report) -> list[dict[str, Any]]:  # noqa: ARG001 (every worker gets one)
    """What each of the two workers does."""
    return [asdict(_measure(wire)) for wire in (comm, comm.native)]


def _measure(comm: Comm) -> Ping:
    small, small_right = _time(comm, SMALL, _SMALL_TIMES)
    large, large_right = _time(comm, LARGE, _LARGE_TIMES)
    sent = Ring().cost(comm.size, LARGE).busiest
    return Ping(comm.wire, small, sent / large, small_right and large_right)


def _time(comm: Comm, nbytes: int, times: int) -> tuple[float, bool]:
    """(median seconds, whether every sum was right)."""
    seconds, right = [], True
    for _ in range(_WARM_UP + times):
        buffer = torch.full((nbytes // 4,), float(comm.rank + 1))
        begun = comm.clock.now()
        Ring().run(comm, buffer, "metrics/ping")
        seconds.append(comm.clock.now() - begun)
        right = right and bool((buffer == comm.size * (comm.size + 1) / 2).all())
    return statistics.median(seconds[_WARM_UP:]), right


def _hear_nothing(event: dict[str, Any]) -> None:
    pass
