"""A network in a table: every figure that was measured, and a dash where there is none."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tutti.lab.network import HEADER, describe_hosts, find_doubts, make_table

RATES = {"out": 200.4e6, "in": 19.96e6, "payload_out": 191e6, "payload_in": 1.9e6}
FULL = {"host": 0, "asked": 2e8, **RATES, "latency": 45.2e-6, "cpu_asked": 0.4, "cpu": 0.398}
PLAIN = {"host": 1, "asked": None, "latency": 0.0101, "cpu_asked": None, "cpu": None}
NETWORK: dict[str, Any] = {
    "asked": "hosts(200Mbit, cpu=0.4)",
    "measured": [FULL, PLAIN],
    "system_congestion_control": "cubic",
}


def show(description: dict[str, Any], width: int = 110) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(make_table(description))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_row_has_every_figure_in_the_headers_order() -> None:
    first, second = describe_hosts(NETWORK)
    assert dict(zip(HEADER, first, strict=True)) == {
        "host": "0",
        "asked": "200",
        "out": "200",
        "in": "20.0",
        "payload out": "191",
        "payload in": "1.90",
        "latency": "45.2 µs",
        "CPU asked": "0.40",
        "CPU": "0.40",
    }
    assert second == ("1", "–", "–", "–", "–", "–", "10.1 ms", "–", "–")


def test_a_network_that_was_not_measured_has_no_rows() -> None:
    assert describe_hosts({"asked": "loopback"}) == []
    assert "loopback" in " ".join(show({"asked": "loopback"}))


def test_the_table_is_whole_and_says_what_its_figures_are() -> None:
    header, _, first, second, *caption = show(NETWORK)
    assert header.split() == " ".join(HEADER).split()
    assert first.split()[:2] == ["0", "200"]
    assert second.split()[:2] == ["1", "–"]
    assert " ".join(caption) == (
        "hosts(200Mbit, cpu=0.4) · rates in Mbit/s, headers included; the system's congestion control: cubic"
    )


def test_a_quota_that_was_not_kept_is_said() -> None:
    rows = [{"host": 0, "cpu_asked": 0.4, "cpu": 0.39}, {"host": 1, "cpu_asked": 0.4, "cpu": 0.17}]
    (doubt,) = find_doubts({"asked": "hosts(cpu=0.4)", "measured": rows})
    assert doubt.startswith("When all 2 hosts of hosts(cpu=0.4) computed at once, host 1 got 0.17 of a core where 0.4")


def test_a_link_that_was_not_kept_is_said() -> None:
    kept = {"host": 0, "asked": 40e6, "out": 39e6, "in": 41e6}
    (doubt,) = find_doubts({"asked": "hosts(40Mbit)", "measured": [kept, {**kept, "host": 1, "in": 32e6}]})
    assert doubt.startswith(
        "When the links of hosts(40Mbit) were measured, that of host 1 carried 32.0 Mbit/s where 40.0"
    )


@pytest.mark.parametrize(
    "description",
    [
        None,
        {"asked": "loopback"},
        {"measured": [{"host": 0, "cpu_asked": 0.4, "cpu": 0.37}]},
        {"measured": [{"host": 0, "cpu_asked": None, "cpu": None}]},
        {"measured": [{"host": 0, "asked": None}, {"host": 1, "asked": 40e6, "out": 39e6, "in": 41.9e6}]},
    ],
)
def test_where_nothing_was_found_wrong_nothing_is_said(description: dict[str, Any] | None) -> None:
    assert find_doubts(description) == []
