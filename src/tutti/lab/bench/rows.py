"""The results of a benchmark, one row per operation, dtype, number of workers, size and route.

Bandwidths are nccl-tests': the algorithm's is bytes over seconds, the bus's that times a factor of operation and
workers, which makes it comparable with a link's whatever the number of workers. Both are bytes per second.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from tutti.collectives.base import Collective
from tutti.lab.bench.floor import find_floor, predict
from tutti.lab.bench.measure import Measured
from tutti.lab.routes import bus_factor
from tutti.networks.base import Network
from tutti.spec import parse

FOR_P99: Final = 100  # samples


@dataclass(frozen=True)
class Row:
    op: str
    route: str
    workers: int
    bytes: int  # of the whole buffer
    seconds: float  # of one operation: the median over the samples, each of the slowest worker
    algbw: float
    busbw: float
    correct: bool
    dtype: str
    min: float
    p99: float | None  # None where fewer than 100 samples were taken
    quartiles: tuple[float, float]
    samples: int
    repeats: int  # operations in a row, whose mean a sample is
    floor: float  # seconds that no algorithm can beat
    predicted: float | None  # seconds by the route's cost function, where all links have one rate
    spec: str
    network: str
    wire: str

    def equals(self, other: Row) -> bool:
        """Within the noise: the median of each lies between the quartiles of the other."""
        return self._covers(other.seconds) and other._covers(self.seconds)

    def _covers(self, seconds: float) -> bool:
        return self.quartiles[0] <= seconds <= self.quartiles[1]


def make_row(measured: Measured, workers: int, network: Network, wire: str) -> Row:
    operation, nbytes, times = measured.op, measured.bytes, measured.times
    route = parse(measured.route, Collective)
    seconds = statistics.median(times)
    return Row(
        op=operation,
        route=measured.route,
        workers=workers,
        bytes=nbytes,
        seconds=seconds,
        algbw=nbytes / seconds,
        busbw=nbytes / seconds * bus_factor(operation, workers),
        correct=measured.correct,
        dtype=measured.dtype,
        min=min(times),
        p99=find_p99(times),
        quartiles=_quartiles(times),
        samples=len(times),
        repeats=measured.repeats,
        floor=find_floor(operation, nbytes, workers, network, measured.copy),
        predicted=predict(route, operation, nbytes, workers, network),
        spec=str(route),
        network=str(network),
        wire=wire,
    )


def find_p99(times: list[float]) -> float | None:
    """None where there are too few samples to speak of the slowest hundredth."""
    return statistics.quantiles(times, n=100, method="inclusive")[98] if len(times) >= FOR_P99 else None


def _quartiles(times: list[float]) -> tuple[float, float]:
    if len(times) < 2:
        return times[0], times[0]
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, high


# --- in groups -------------------------------------------------------------------------------------------------------

Title = tuple[str, int, str]  # operation, workers, dtype


def group_rows(rows: Iterable[Row]) -> dict[Title, dict[int, list[Row]]]:
    """By operation, workers and dtype, and in them by size; in the order given."""
    groups: dict[Title, dict[int, list[Row]]] = {}
    for row in rows:
        groups.setdefault((row.op, row.workers, row.dtype), {}).setdefault(row.bytes, []).append(row)
    return groups


def describe_title(title: Title) -> str:
    operation, workers, dtype = title
    return f"{operation} · {workers} worker{'' if workers == 1 else 's'} · {dtype}"


def find_fastest(rows: list[Row]) -> list[Row]:
    """The fastest right one of a size, and those that equal it within the noise; the fastest first."""
    right = sorted((row for row in rows if row.correct), key=lambda row: row.seconds)
    return [row for row in right if row.equals(right[0])]


def find_native(rows: list[Row]) -> Row | None:
    return next((row for row in rows if row.route == "native"), None)


def make_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
