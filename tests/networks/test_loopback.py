"""Loopback is the machine as it is: nothing is set up, nothing is described."""

from __future__ import annotations

from tutti.networks.base import Fabric
from tutti.networks.loopback import Loopback


def test_it_is_the_plain_fabric_for_any_number_of_workers() -> None:
    network = Loopback()
    network.enter()
    network.check(10_000)
    assert not network.hosts
    with network.open(5) as fabric:
        assert fabric == Fabric()
        assert fabric.address == "127.0.0.1"
        assert fabric.threads == 0
