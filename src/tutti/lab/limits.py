"""The link that limits a run on hosts with rates: the one that is busy longest with what a step sends over it.

    busy = 8 * bytes per step / rate        for every host's link, in either direction

What a worker sends is what the run's figures say of it, what it receives is metered, where its wire meters that. Where
hosts have no rates nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tutti.lab.record import Record
from tutti.lab.units import format_bytes, format_number, format_percent, format_seconds

_TRAINING = ("gradients", "weights", "buffers")
_ALIKE = 1.02  # times as long is as long
_HARDLY = 0.1  # a share of the step below which a link limits nothing


@dataclass(frozen=True)
class Load:
    """What one direction of a host's link carries in a step."""

    host: int
    direction: str  # out or in
    nbytes: float
    rate: float  # bits per second

    @property
    def seconds(self) -> float:
        return 8 * self.nbytes / self.rate


def describe_limits(records: list[Record], labels: list[str]) -> list[str]:
    """A sentence for every run whose links have rates."""
    said = [_describe(record, label) for record, label in zip(records, labels, strict=True)]
    return [each for each in said if each]


def find_loads(record: Record) -> list[Load]:
    """Of every link with a rate, the busiest first."""
    network = record.launch.get("network") or {}
    rates = {int(row["host"]): row.get("asked") for row in network.get("measured") or []}
    loads = []
    for rank, measurement in enumerate(record.measurements):
        rate = rates.get(rank)
        if rate:
            received = _received(measurement) / record.steps
            loads += [Load(rank, "out", record.sent_per_step[rank], rate), Load(rank, "in", received, rate)]
    return sorted(loads, key=lambda load: -load.seconds)


def _received(measurement: dict[str, Any]) -> float:
    """Of training in the whole run, the starting weights included; zero where it was not metered."""
    rows = [row for row in measurement.get("traffic", []) if row["kind"] in _TRAINING]
    return sum(float(row.get("received", 0)) for row in rows)


def _describe(record: Record, label: str) -> str:
    loads = find_loads(record) if record.measurements and record.steps else []
    if not loads or loads[0].seconds < _HARDLY * record.step_seconds:
        return ""
    most = loads[0]
    hosts = {load.host for load in loads if load.seconds * _ALIKE >= most.seconds}
    alike = len(hosts) == record.workers > 1
    whose = "all links alike" if alike else f"the link of host {most.host}, {most.direction}wards"
    share = min(1.0, most.seconds / record.step_seconds)
    return (
        f"{label} is limited by {whose}: {format_bytes(most.nbytes)} per step are {format_seconds(most.seconds)} at "
        f"{format_number(most.rate / 1e6)} Mbit/s, {format_percent(share, 0)} of its step"
    )
