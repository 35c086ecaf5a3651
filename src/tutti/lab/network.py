"""A network as it was asked for and as it was measured, for a reader."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tutti.hosts.measure import TOLERANCE
from tutti.lab.units import NOTHING, format_number, format_seconds

_SHORT = 0.9  # of a quota, when all hosts compute at once
HEADER = ("host", "asked", "out", "in", "payload out", "payload in", "latency", "CPU asked", "CPU")


def describe_hosts(description: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row of texts per host, under HEADER; rates in Mbit/s."""
    return [_row(host) for host in description.get("measured", [])]


def find_doubts(description: dict[str, Any] | None) -> list[str]:
    """Links and quotas cannot be kept when something else takes the processors; that is no mistake, but must not go
    unsaid."""
    described = description or {}
    asked, rows = described.get("asked", "the network"), described.get("measured", [])
    return [*_doubt_links(asked, rows), *_doubt_quotas(asked, [row for row in rows if row.get("cpu_asked")])]


def _doubt_links(asked: str, rows: list[dict[str, Any]]) -> list[str]:
    ends = [
        (row["host"], row[way], row["asked"]) for row in rows if row.get("asked") for way in ("out", "in") if way in row
    ]
    host, measured, rate = max(ends, key=lambda end: abs(end[1] / end[2] - 1), default=(0, 1.0, 1.0))
    if abs(measured / rate - 1) <= TOLERANCE:
        return []
    return [
        f"When the links of {asked} were measured, that of host {host} carried {format_number(measured / 1e6)} Mbit/s "
        f"where {format_number(rate / 1e6)} were asked for: this machine was busy or is too slow for that, and times "
        "are not to be trusted."
    ]


def _doubt_quotas(asked: str, rows: list[dict[str, Any]]) -> list[str]:
    worst = min(rows, key=_share, default=None)
    if worst is None or _share(worst) >= _SHORT:
        return []
    return [
        f"When all {len(rows)} hosts of {asked} computed at once, host "
        f"{worst['host']} got {worst['cpu']:.2f} of a core where {worst['cpu_asked']:g} were asked for: something else "
        "took the processors, and times are not to be trusted."
    ]


def _share(row: dict[str, Any]) -> float:
    return float(row["cpu"] / row["cpu_asked"])


def make_table(description: dict[str, Any]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", caption_justify="left")
    for name in HEADER:
        table.add_column(name, justify="right")
    for row in describe_hosts(description):
        table.add_row(*row)
    congestion = description.get("system_congestion_control", "")
    table.caption = (
        f"{description.get('asked', '')} · rates in Mbit/s, headers included; "
        f"the system's congestion control: {congestion}"
    )
    return table


def _row(host: dict[str, Any]) -> tuple[str, ...]:
    rates = [host.get(key) for key in ("asked", "out", "in", "payload_out", "payload_in")]
    return (
        str(host["host"]),
        *(NOTHING if rate is None else format_number(rate / 1e6) for rate in rates),
        format_seconds(host["latency"]),
        *(NOTHING if share is None else f"{share:.2f}" for share in (host.get("cpu_asked"), host.get("cpu"))),
    )
