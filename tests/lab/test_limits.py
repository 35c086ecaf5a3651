"""Which link is busy longest with what a step sends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sample_records import make_empty, make_record

from tutti.lab.limits import describe_limits, find_loads
from tutti.lab.record import Record


def on_hosts(rates: list[float | None], sent: list[float], step: float = 0.1) -> Record:
    """Everybody sends to the next one."""
    rows = [{"host": host, **({"asked": rate} if rate else {})} for host, rate in enumerate(rates)]
    network = {"asked": "hosts", "measured": rows}
    record = make_record("ring", workers=len(rates), step=step, network=network, steps=10)
    measurements: list[dict[str, Any]] = []
    for rank, measurement in enumerate(record.measurements):
        received = {"kind": "gradients", "peer": 0, "sent": 0.0, "received": 10 * sent[rank - 1]}
        measurements.append({**measurement, "bytes_per_step": sent[rank], "traffic": [received]})
    return dataclasses.replace(record, measurements=measurements)


def test_the_busiest_direction_of_the_busiest_link_is_named() -> None:
    record = on_hosts([1e8, 1e8, 1e8], [1e5, 1e6, 1e5])
    assert [(load.host, load.direction) for load in find_loads(record)[:2]] == [(1, "out"), (2, "in")]
    (said,) = describe_limits([record], ["ring"])
    assert said == (
        "ring is limited by the link of host 1, outwards: 977 KiB per step are 80.0 ms at 100 Mbit/s, 80 % of its step"
    )


def test_a_slow_link_limits_with_fewer_bytes() -> None:
    (said,) = describe_limits([on_hosts([1e8, 1e7, 1e8], [4e5, 1e5, 1e5])], ["ring"])
    assert "the link of host 1, inwards: 391 KiB per step are 320 ms at 10 Mbit/s, 100 % of its step" in said.replace(
        "10.0 Mbit", "10 Mbit"
    )


def test_links_that_carry_the_same_are_not_told_apart() -> None:
    (said,) = describe_limits([on_hosts([1e8] * 3, [1e6] * 3)], ["ring"])
    assert said.startswith("ring is limited by all links alike: 977 KiB per step")


@pytest.mark.parametrize(
    "record",
    [
        on_hosts([None, None], [1e6, 1e6]),
        on_hosts([1e9, 1e9], [1e3, 1e3]),
        make_record(),
        make_record(network="as it was"),  # type: ignore[arg-type]
        make_empty(),
    ],
    ids=["no rates", "links are idle", "no network", "an old record", "no measurements"],
)
def test_where_no_link_limits_nothing_is_said(record: Record) -> None:
    assert describe_limits([record], ["ring"]) == []
