"""The schedule by itself: who has what when; then who talks to whom, and which topologies will do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from workers import on_threads

from tutti.collectives.base import Collective
from tutti.collectives.tree import Flow, Rooted, Tree, find_runs, grow, measure, schedule
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.spec import SpecError, parse
from tutti.topologies.base import Topology, find_parents

SHAPES = ("binary-tree", "double-binary-tree", "chain", "star")
OPERATIONS = Tree.operations


def trees_of(shape: str, size: int, root: int | None = None) -> list[Rooted]:
    topology = parse(shape, Topology)
    return [grow(find_parents(topology, size, number), root) for number in range(topology.parts)]


# --- the schedule ----------------------------------------------------------------------------------------------------


def test_a_tree_is_measured() -> None:
    """0 above 1 and 2, 1 above 3 and 4."""
    tree = grow([-1, 0, 0, 1, 1])
    assert tree.heights == [2, 1, 0, 0, 0]
    assert tree.depths == [0, 1, 1, 2, 2]
    assert tree.children == [[1, 2], [3, 4], [], [], []]
    assert tree.below == [[0, 1, 2, 3, 4], [1, 3, 4], [2], [3], [4]]


def test_another_root_is_counted_from() -> None:
    assert grow([-1, 0, 0, 1, 1], root=3).parents == [3, 4, 4, -1, 3]


def test_ticks_of_a_small_tree() -> None:
    """0 above 1 above 2, two segments: the sums come up at ticks 0 to 2, and go down at 2 to 4."""
    ticks = {(flow.sender, flow.receiver): flow.tick for flow in schedule("all-reduce", [grow([-1, 0, 1])], count=2)}
    assert ticks == {(2, 1): 0, (1, 0): 1, (0, 1): 2, (1, 2): 3}


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_sent_before_it_has_come(shape: str, size: int, count: int) -> None:
    """In the all-reduce, for every segment: a sum goes up when all below have come, and down when it is complete."""
    flows = schedule("all-reduce", trees_of(shape, size), count)
    for number, tree in enumerate(trees_of(shape, size)):
        ours = [flow for flow in flows if flow.tree == number]
        assert {(f.sender, f.receiver) for f in ours if f.up} == set(tree.edges)
        assert {(f.receiver, f.sender) for f in ours if not f.up} == set(tree.edges)
        for flow in ours:
            for earlier in needs(flow, ours):
                assert earlier.tick < flow.tick, f"{flow} needs {earlier}"


def needs(flow: Flow, flows: list[Flow]) -> list[Flow]:
    """What must have come to the sender: all that comes up to it, and for the way down what comes down."""
    comes = [each for each in flows if each.receiver == flow.sender]
    return [each for each in comes if each.up or not flow.up]


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_path_is_the_sum_over_the_ticks(shape: str, operation: str, size: int, count: int) -> None:
    flows = schedule(operation, trees_of(shape, size), count)
    path, last = 0.0, 0
    for tick in range(1000):
        loads = [0.0] * 2 * size
        for flow in flows:
            if flow.tick <= tick < flow.tick + flow.segments:
                loads[flow.sender] += flow.share / flow.segments
                loads[size + flow.receiver] += flow.share / flow.segments
                last = tick + 1
        path += max(loads)
    cost = measure(flows, nbytes=100)
    assert cost.rounds == last
    assert cost.path == pytest.approx(100 * path)


@pytest.mark.parametrize(
    ("shape", "bandwidth"), [("chain", 2), ("binary-tree", 3), ("double-binary-tree", 2), ("star", 7)]
)
def test_long_buffers_keep_the_links_busy(shape: str, bandwidth: float) -> None:
    """With very many segments the path is what passes the busiest worker: two trees need no more than a chain."""
    cost = parse(f"tree({shape}, segment=8B)", Collective).cost(8, 8 * 10**6)
    assert cost.path / (8 * 10**6) == pytest.approx(bandwidth, rel=1e-3)


def test_short_buffers_take_twice_the_height() -> None:
    for size in (2, 3, 5, 8, 16):
        height = math.floor(math.log2(size))
        assert [parse(f"tree({shape})", Collective).cost(size, 100).rounds for shape in SHAPES] == [
            2 * height,
            2 * height,
            2 * (size - 1),
            2,
        ]


def test_runs() -> None:
    assert find_runs([1, 2, 3, 7]) == [(1, 4), (7, 8)]
    assert find_runs([0]) == [(0, 1)]
    assert find_runs([]) == []


# --- on the wire -----------------------------------------------------------------------------------------------------


def meters_of(spec: str, size: int, length: int) -> list[Meter]:
    def work(comm: Comm) -> Meter:
        counted = metered(comm)
        parse(spec, Collective).run(counted, torch.zeros(length), "gradients/0")
        return counted.meter

    return on_threads(size, work)


@pytest.mark.parametrize("shape", SHAPES)
def test_only_neighbours_talk(shape: str) -> None:
    topology = parse(shape, Topology)
    for rank, meter in enumerate(meters_of(f"tree({shape})", 7, 100)):
        neighbours = {peer for number in range(topology.parts) for peer in topology.peers(rank, 7, part=number)}
        assert {peer for _, peer in meter.tallies} == neighbours


def test_two_trees_carry_half_of_the_buffer_each() -> None:
    """Nobody sends the buffer more than twice; in one tree the inner workers send it three times."""
    one, two = (max(m.sent() for m in meters_of(f"tree({shape})", 7, 100)) for shape in SHAPES[:2])
    assert (one, two) == (3 * 400, 2 * 400)


def test_all_that_is_due_at_a_tick_goes_in_one_exchange() -> None:
    """Worker 1 of seven has a parent and two children: with four segments and height 2 it is busy for six ticks."""

    class Counting(World):
        def comm(self, rank: int) -> Comm:  # type: ignore[override]
            comm = super().comm(rank)
            exchange = comm.exchange

            def count(sends: list[tuple[int, Tensor]], recvs: list[tuple[int, Tensor]], tag: str) -> None:
                calls.append((rank, len(sends), len(recvs)))
                exchange(sends, recvs, tag)

            comm.exchange = count  # type: ignore[assignment]
            return comm

    calls: list[tuple[int, int, int]] = []
    world, route = Counting(7), parse("tree(segment=8B)", Collective)
    on_threads(7, lambda comm: route.run(world.comm(comm.rank), torch.zeros(8), "gradients/0"))
    ours = [(sends, recvs) for rank, sends, recvs in calls if rank == 1]
    assert ours == [(0, 2), (1, 2), (1, 3), (3, 3), (3, 1), (2, 1), (2, 0)]


@pytest.mark.parametrize(
    "shape",
    ["ring", "torus", "complete", "hypercube", "erdos-renyi", "random-regular", "edge-list(0-1-2-3-0+3-4-5-6-7)"],
)
def test_any_topology_that_joins_all(shape: str) -> None:
    """Where it has circles, by the shortest ways to its root."""

    def work(comm: Comm) -> list[float]:
        route = parse(f"tree({shape})", Collective)
        route.prepare(comm)
        buffer = torch.arange(10.0) * (comm.rank + 1)
        route.run(comm, buffer, "gradients/0")
        return buffer.tolist()

    assert on_threads(8, work) == [[36.0 * k for k in range(10)]] * 8


def test_the_tree_of_a_hypercube_is_binomial() -> None:
    """As many workers at every depth as the binomial coefficients say; as few rounds as can be."""
    [tree] = trees_of("hypercube", 16)
    assert [tree.depths.count(depth) for depth in range(5)] == [math.comb(4, depth) for depth in range(5)]
    assert [parse("tree(hypercube)", Collective).cost(16, 100, each).rounds for each in ("reduce", "broadcast")] == [
        4,
        4,
    ]


@pytest.mark.parametrize("shape", ["exponential", "random-pairing", "hypercube"])
def test_topologies_without_a_tree(shape: str) -> None:
    with pytest.raises(UserError, match=f"'{shape}'"):
        parse(f"tree({shape})", Collective).prepare(World(3).comm(0))


def test_well_known_names() -> None:
    assert str(parse("binary-tree", Collective)) == "tree(binary-tree)"
    assert str(parse("double-binary-tree(segment=1MiB)", Collective)) == "tree(double-binary-tree, segment=1MiB)"


def test_segment_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="segment of 'tree' must be at least 8 bytes, not 0"):
        parse("tree(segment=0)", Collective)
