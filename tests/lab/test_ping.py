"""Two real workers get the right sums on both wires."""

from __future__ import annotations

from tutti.lab.ping import ping


def test_both_wires_work() -> None:
    pings = ping()
    assert [each.wire for each in pings] == ["shared", "torch"]
    for each in pings:
        assert each.right
        assert each.round_trip > 0
        assert each.bandwidth > 0
