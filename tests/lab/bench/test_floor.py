"""What nothing can beat, computed by hand: over links, and in memory."""

from __future__ import annotations

import pytest

from tutti.collectives.base import Collective
from tutti.lab.bench.floor import describe_floor, find_floor, predict
from tutti.networks.base import Network
from tutti.spec import parse

LOOPBACK = parse("loopback", Network)
LINKS = parse("hosts(80Mbit, latency=5ms)", Network)  # 10 MB/s
SLOW = parse("hosts(80Mbit, slow-rate=8Mbit)", Network)


def test_over_links_it_is_the_least_bytes_at_their_rate_and_one_latency() -> None:
    assert find_floor("all-reduce", 10_000_000, 4, LINKS, copy=99.0) == pytest.approx(0.005 + 1.5)
    assert find_floor("broadcast", 10_000_000, 4, LINKS, copy=99.0) == pytest.approx(0.005 + 1.0)
    assert find_floor("scatter", 10_000_000, 4, LINKS, copy=99.0) == pytest.approx(0.005 + 0.75)


def test_a_slow_link_is_counted_with_what_must_pass_it() -> None:
    assert find_floor("all-reduce", 1_000_000, 4, SLOW, copy=99.0) == pytest.approx(1.0)
    assert find_floor("scatter", 1_000_000, 4, SLOW, copy=99.0) == pytest.approx(0.25)


@pytest.mark.parametrize("network", [LOOPBACK, parse("hosts(cpu=0.5)", Network)], ids=str)
def test_without_a_rate_it_is_every_workers_share_of_the_copying(network: Network) -> None:
    """An all-reduce over 4 moves 6 buffers: each of the 4 workers copies 1.5."""
    assert find_floor("all-reduce", 4096, 4, network, copy=0.01) == pytest.approx(0.015)
    assert find_floor("gather", 4096, 4, network, copy=0.01) == pytest.approx(0.01 * 0.75 / 4)
    assert find_floor("all-reduce", 4096, 1, network, copy=0.01) == 0


def test_the_prediction_is_the_routes_own_cost_over_equal_links() -> None:
    ring = parse("ring", Collective)
    assert predict(ring, "all-reduce", 1_000_000, 4, LINKS) == pytest.approx(6 * 0.005 + 0.15)
    assert predict(ring, "all-reduce", 1_000_000, 4, LOOPBACK) is None
    assert predict(ring, "all-reduce", 1_000_000, 4, SLOW) is None


def test_it_is_said_what_it_means() -> None:
    assert "memory" in describe_floor(LOOPBACK)
    assert "memory" in describe_floor(parse("hosts(cpu=0.5)", Network))
    assert "busiest link" in describe_floor(LINKS)
