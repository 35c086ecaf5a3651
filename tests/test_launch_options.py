"""Places that cannot be are refused with a sentence, and a worker has its share of the cores."""

from __future__ import annotations

import pytest

from tutti.comm.rendezvous import WireOptions
from tutti.errors import UserError
from tutti.launch_options import LaunchOptions
from tutti.machine import count_cores
from tutti.networks.base import Door, Fabric


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (LaunchOptions(0), "at least 1"),
        (LaunchOptions(5, nodes=2, master="a:1"), "do not divide"),
        (LaunchOptions(4, nodes=2, node_rank=2, master="a:1"), "below --nodes"),
        (LaunchOptions(4, nodes=2), "needs --master"),
        (LaunchOptions(4, nodes=2, master="a:1", engine="threads"), "needs --engine processes"),
    ],
)
def test_places_that_cannot_be(place: LaunchOptions, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        place.check()


def test_threads_are_those_asked_for_or_a_share_of_the_cores() -> None:
    assert LaunchOptions(count_cores()).threads_each() == 1
    assert LaunchOptions(1).threads_each() == count_cores()
    assert LaunchOptions(1, threads=3, fabric=Fabric(threads=2)).threads_each() == 3
    assert LaunchOptions(1, fabric=Fabric(threads=2)).threads_each() == 2


def test_workers_on_hosts_of_their_own_share_no_memory() -> None:
    assert LaunchOptions(2).wire_used == "shared"
    assert LaunchOptions(2, engine="threads").wire_used == "threads"
    assert LaunchOptions(2, fabric=Fabric(doors=(Door(), Door()))).wire_used == "tcp"
    assert LaunchOptions(2, wire=WireOptions("torch"), fabric=Fabric(doors=(Door(), Door()))).wire_used == "torch"


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (LaunchOptions(2, engine="threads"), "leave --engine threads out"),
        (LaunchOptions(2, nodes=2, master="a:1"), "tutti starts the workers itself"),
        (LaunchOptions(2, wire=WireOptions(interface="eth0")), "leave --interface out"),
    ],
)
def test_hosts_that_cannot_be(place: LaunchOptions, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        place.check_hosts("hosts(1Gbit)")
