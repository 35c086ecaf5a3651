"""Who talks across hosts, how hosts are found, and what cannot stand inside."""

from __future__ import annotations

import threading

import pytest
import torch
from workers import on_tcp, on_threads

from tutti.collectives import hierarchical
from tutti.collectives.base import Collective
from tutti.collectives.hierarchical import Hierarchical, find_hosts
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.spec import SpecError, parse


def meters_of(spec: str, size: int) -> list[Meter]:
    route = parse(spec, Collective)

    def work(comm: Comm) -> Meter:
        counted = metered(comm)
        route.run(counted, torch.zeros(60), "gradients/0")
        return counted.meter

    return on_threads(size, work)


@pytest.mark.parametrize("between", ["ring", "star", "direct", "butterfly", "halving-doubling", "tree", "all-gather"])
@pytest.mark.parametrize("inside", ["ring", "star", "direct", "tree(chain)", "native"])
def test_only_first_workers_talk_across_hosts(inside: str, between: str) -> None:
    host = [0, 0, 1, 1, 1, 2]
    for rank, meter in enumerate(meters_of(f"hierarchical({inside}, {between}, hosts=2x3x1)", 6)):
        across = {peer for _, peer in meter.tallies if host[peer] != host[rank]}
        assert across <= {0, 2, 5}
        assert bool(across) == (rank in (0, 2, 5))


def test_one_buffer_leaves_and_enters_a_host() -> None:
    """Over two hosts of four: half of the buffer twice; a plain ring sends 7/4 of it over the same link."""
    meter = meters_of("hierarchical(hosts=4x4)", 8)[0]
    assert meter.tallies["gradients", 4].sent == meter.tallies["gradients", 4].received == 240


def test_costs_add_up() -> None:
    """Hosts of two and three: the longest reduce, the ring between two, the longest broadcast."""
    cost = parse("hierarchical(star, ring, hosts=2x3)", Collective).cost(5, 100)
    assert cost.rounds == 1 + 2 + 1
    assert cost.path == 200 + 100 + 200
    assert cost.total == (100 + 200) + 200 + (100 + 200)
    assert cost.busiest == 300, "the second host's first worker: from two inside, and from the other host"


def test_one_host_has_nothing_between() -> None:
    route = parse("hierarchical(star, ring)", Collective)
    assert route.cost(4, 100) == parse("star", Collective).cost(4, 100)


# --- hosts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def four_on_two(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """Every thread says where it is: workers 0 and 2 on one host, 1 and 3 on another."""
    place = threading.local()
    monkeypatch.setattr(hierarchical, "name_host", lambda: ["here", "elsewhere"][place.rank % 2])
    return place


def test_hosts_are_found(four_on_two: threading.local) -> None:
    def work(comm: Comm) -> list[list[int]]:
        four_on_two.rank = comm.rank
        return find_hosts(comm)

    assert on_threads(4, work) == [[[0, 2], [1, 3]]] * 4


def test_hosts_are_found_once(four_on_two: threading.local) -> None:
    """By `prepare`, or by the first run; each comm has its own."""
    route = Hierarchical()

    def work(comm: Comm) -> tuple[float, list[int]]:
        four_on_two.rank = comm.rank
        counted, buffer = metered(comm), torch.full((5,), comm.rank + 1.0)
        messages = []
        for _ in range(3):
            route.run(counted, buffer, "gradients/0")
            messages.append(sum(t.messages for (kind, _), t in counted.meter.tallies.items() if kind == "control"))
        return buffer[0].item(), messages

    for result, (first, *later) in on_threads(4, work):
        assert result == 10 * 4 * 4
        assert later == [first, first]
        assert first > 0


def test_workers_of_one_process_are_on_one_host() -> None:
    assert on_tcp(3, find_hosts) == [[[0, 1, 2]]] * 3


def test_hosts_must_add_up() -> None:
    route = parse("hierarchical(hosts=2x3x1)", Collective)
    sentence = "hosts=2x3x1 of 'hierarchical' is for 6 workers, and there are 4"
    with pytest.raises(UserError, match=sentence):
        route.prepare(World(4).comm(0))
    with pytest.raises(UserError, match=sentence):
        route.cost(4, 100)


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["butterfly", "all-gather", "ring-reduce", "halving-doubling", "hierarchical"])
def test_inside_needs_a_reduce_and_a_broadcast(inside: str) -> None:
    """The error says which have them, and those do."""
    with pytest.raises(SpecError, match="inside of 'hierarchical' needs a reduce and a broadcast: use ") as caught:
        parse(f"hierarchical({inside})", Collective)
    advised = caught.value.message.partition(": use ")[2].split(", ")
    assert {"ring", "star", "tree", "direct"} <= set(advised)
    assert all(parse(f"hierarchical({name})", Collective) for name in advised)


def test_parts_are_prepared_for_their_level() -> None:
    """A root of 2 is a worker of the second host, but not of the first."""
    route = parse("hierarchical(star, star(root=2), hosts=2x3x1)", Collective)
    on_threads(6, route.prepare)
    with pytest.raises(UserError, match=r"root of 'star' must be below the number of workers \(2\), not 2"):
        on_threads(5, parse("hierarchical(star, star(root=2), hosts=2x3)", Collective).prepare)


def test_three_levels() -> None:
    """Between hosts another hierarchy: pairs of hosts, as if they stood in two racks."""
    route = parse("hierarchical(star, hierarchical(star, ring, hosts=2x2), hosts=2x2x2x2)", Collective)

    def work(comm: Comm) -> tuple[float, set[int]]:
        counted, buffer = metered(comm), torch.full((3,), comm.rank + 1.0)
        route.run(counted, buffer, "gradients/0")
        return buffer[0].item(), {peer for _, peer in counted.meter.tallies}

    results = on_threads(8, work)
    assert [result for result, _ in results] == [36.0] * 8
    assert [peers for _, peers in results] == [{1, 2, 4}, {0}, {0, 3}, {2}, {0, 5, 6}, {4}, {4, 7}, {6}]
