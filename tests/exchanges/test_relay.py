"""Relayed sums beside the paper's other form: what an average contains of whom, and how old it is.

After step t worker i holds the mean of x_j(t - delay) over all j, where the delay is one less than the number of hops
between i and j (none for i itself and its neighbours). What is older than the first step, or has lost one of the
messages on its way, is missing. No message, sum or count occurs in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from contracts.test_topologies import refusal as topology_refusal
from decentralised_oracle import LINKS, Array
from exchange_oracle import Losing, Lost, by_parts, draw, layout_of, nothing, often, own_test, tell_all
from workers import SIZES, on_threads

from tutti.comm.base import LOST, Comm, Message
from tutti.comm.lossy import Lossy
from tutti.comm.metered import metered
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.exchanges.relay import Relay
from tutti.spec import parse
from tutti.topologies.base import Topology

TREES = ("chain", "binary-tree", "double-binary-tree", "star")
MISSING = ("counts", "own", "initial")
EVERY_MISSING = pytest.mark.parametrize("missing", MISSING)

Way = tuple[int, ...]

# --- the formula -----------------------------------------------------------------------------------------------------


def ways_from_root(topology: Topology, size: int, part: int) -> dict[int, Way]:
    """Of all shortest ways from the root to a worker the one with the lowest ranks, compared from its beginning."""
    ways: dict[int, Way] = {(root := topology.root(size, part)): (root,)}
    while len(ways) < size:
        longer = [(*way, peer) for worker, way in ways.items() for peer in topology.peers(worker, size, part=part)]
        new = {way[-1] for way in longer} - ways.keys()
        ways |= {worker: min(way for way in longer if way[-1] == worker) for worker in new}
    return ways


def find_way(ways: dict[int, Way], sender: int, receiver: int) -> Way:
    """Up from the sender to where the two ways from the root part, and down again."""
    up, down = ways[sender], ways[receiver]
    common = sum(one == other for one, other in zip(up, down, strict=False))
    return (*up[: common - 1 : -1], *down[common - 1 :])


def find_all_ways(topology: Topology, size: int, part: int) -> list[list[Way]]:
    """[receiver][sender]"""
    ways = ways_from_root(topology, size, part)
    return [[find_way(ways, sender, receiver) for sender in range(size)] for receiver in range(size)]


def find_contribution(way: Way, values: Array, step: int, part: int, lost: Lost, stand_in: str) -> Array | None:
    """What is there at the end of the way at this step, of whoever stands at its beginning: back hop by hop, each of
    which was sent one step before the next, or earlier where the last one that arrived stands in."""
    at = step
    for hop in reversed(list(pairwise(way))):
        while stand_in == "last" and at >= 0 and lost(at, part, *hop):
            at -= 1
        if at < 0 or lost(at, part, *hop):
            return None
        at -= 1
    return values[at + 1, way[0]]


def average(own: Array, others: list[Array], size: int, missing: str, start: Array) -> Array:
    if missing == "counts":
        return np.mean([own, *others], axis=0)
    stand_ins = [own if missing == "own" else start] * (size - 1 - len(others))
    return np.mean([own, *others, *stand_ins], axis=0)


def history(exchange: Relay, start: Array, bodies: Array, lost: Lost = nothing) -> Array:
    """For the contract; see the module."""

    def of_part(part: int, first: Array, pieces: Array) -> Array:
        size = pieces.shape[1]
        ways = find_all_ways(exchange.topology, size, part)
        result = np.empty_like(pieces)
        for step in range(len(pieces)):
            for worker in range(size):
                arriving = [
                    find_contribution(ways[worker][other], pieces, step, part, lost, exchange.lost)
                    for other in range(size)
                    if other != worker
                ]
                there = [value for value in arriving if value is not None]
                result[step, worker] = average(pieces[step, worker], there, size, exchange.missing, first)
        return result

    return by_parts(exchange.topology, start, bodies, of_part)


def refusal(exchange: Relay, size: int) -> str:
    """What the error says, for the contract."""
    said = topology_refusal(exchange.topology, size)
    if said or not (exchange.topology.directed or exchange.topology.changing):
        return said
    return "holds no tree, since its links are one-way or change; take chain, binary-tree or ring"


def degree(exchange: Relay, rank: int, size: int, part: int) -> int:
    """In the tree."""
    ways = ways_from_root(exchange.topology, size, part).values()
    return len({link for way in ways for link in pairwise(way) if rank in link})


def sent(exchange: Relay, rank: int, size: int, _: int, lengths: list[int], item: int) -> int:
    """Bytes, for the contract: deg * (S + one number) in single precision at least, for each part's piece."""
    return sum(degree(exchange, rank, size, part) * max(item, 4) * (n + 1) for part, n in enumerate(lengths))


def test_the_formula_itself() -> None:
    """Ways in a chain, in a tree, and in a ring of five, which is cut between 2 and 3."""
    chain, tree, ring = (find_all_ways(parse(name, Topology), 5, 0) for name in ("chain", "binary-tree", "ring"))
    assert chain[4][1] == (1, 2, 3, 4)
    assert chain[2] == [(0, 1, 2), (1, 2), (2,), (3, 2), (4, 3, 2)]
    assert tree[2][3] == (3, 1, 0, 2)
    assert tree[4][3] == (3, 1, 4)
    assert ring[3][2] == (2, 1, 0, 4, 3)
    # the root reaches 3 of a 2 x 2 torus over 1, not over 2
    assert find_all_ways(parse("torus(2)", Topology), 4, 0)[3][0] == (0, 1, 3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("topology", ["chain", "star", "binary-tree"])
def test_the_formula_knows_the_links_of_a_tree(topology: str, size: int) -> None:
    ways = [way for row in find_all_ways(parse(topology, Topology), size, 0) for way in row]
    assert {frozenset(link) for way in ways for link in pairwise(way)} == LINKS[topology](size)
    assert all(len(set(way)) == len(way) for way in ways)


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "first"), [("counts", (1 + 2) / 2), ("own", (1 + 2 + 1) / 3), ("initial", (1 + 2 + 9) / 3)]
)
def test_three_in_a_chain_by_hand(missing: str, first: float) -> None:
    """At the first step worker 0 has not heard of worker 2; at the second it hears what that had at the first."""
    bodies = np.array([[[1.0], [2.0], [4.0]], [[10.0], [20.0], [40.0]]])
    found = tell_all(f"relay(chain, missing={missing})", layout_of(1), np.array([9.0]), bodies)
    assert found[0, 0] == pytest.approx(first)
    assert found[0, 1] == pytest.approx((1 + 2 + 4) / 3)
    assert found[1, 0] == pytest.approx((10 + 20 + 4) / 3)
    assert found[1, 1] == pytest.approx((10 + 20 + 40) / 3)
    assert found[1, 2] == pytest.approx((1 + 20 + 40) / 3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("topology", TREES)
def test_what_does_not_change_is_averaged_exactly_once_every_contribution_is_there(topology: str, size: int) -> None:
    """And from then on `missing` makes no difference: the paper's uniform weights 1/n."""
    layout = layout_of(5, 3)
    start, bodies = draw(size, layout, 1)
    steps = max(1, size - 1)
    for missing in MISSING:
        found = tell_all(f"relay({topology}, missing={missing})", layout, start, np.tile(bodies, (steps, 1, 1)))
        np.testing.assert_allclose(found[-1], np.tile(bodies[0].mean(0), (size, 1)), rtol=1e-12, atol=1e-13)


# --- what does not arrive --------------------------------------------------------------------------------------------


@EVERY_MISSING
@pytest.mark.parametrize("lost", ["last", "nothing"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("topology", TREES)
def test_what_stands_in_for_a_lost_message(topology: str, size: int, lost: str, missing: str) -> None:
    """Here and downstream, in this step and while it would have been passed on."""
    exchange, layout = parse(f"relay({topology}, missing={missing}, lost={lost})", Relay), layout_of(5, 3)
    start, bodies = draw(size, layout, 9)
    found = tell_all(exchange, layout, start, bodies, partial(Losing, topology=exchange.topology, lost=often))
    np.testing.assert_allclose(found, history(exchange, start, bodies, often), rtol=1e-12, atol=1e-12)
    if size > 1:
        assert not np.allclose(found[-1], history(exchange, start, bodies)[-1]), "something was lost"


@pytest.mark.parametrize("lost", ["last", "nothing"])
def test_a_lost_message_by_hand(lost: str) -> None:
    """Four in a chain, where step 4 loses what 1 sends to 2: then 2 misses 0 and 1, or has what it had of them before;
    one step later 3, nobody else."""
    exchange, layout = parse(f"relay(chain, lost={lost})", Relay), layout_of(3)
    start, bodies = draw(4, layout, 8)
    wire = partial(Losing, topology=exchange.topology, lost=lambda *message: message == (4, 0, 1, 2))
    found = tell_all(exchange, layout, start, bodies, wire)
    whole = history(exchange, start, bodies)
    differs = {(int(step), int(worker)) for step, worker in np.argwhere(~np.isclose(found, whole).all(axis=2))}
    assert differs == {(4, 2), (5, 3)}
    if lost == "nothing":
        np.testing.assert_allclose(found[4, 2], (bodies[4, 2] + bodies[4, 3]) / 2)
        np.testing.assert_allclose(found[5, 3], (bodies[5, 3] + bodies[5, 2]) / 2)
    else:
        np.testing.assert_allclose(found[4, 2], (bodies[4, 2] + bodies[4, 3] + bodies[3, 1] + bodies[2, 0]) / 4)
        np.testing.assert_allclose(found[5, 3], (bodies[5, 3] + bodies[5, 2] + bodies[3, 1] + bodies[2, 0]) / 4)


class Noting(Lossy):
    """Loses as it does, and says what."""

    def __init__(self, comm: Comm, lost: set[tuple[int, int, int, int]]) -> None:
        super().__init__(comm, p=0.3, seed=1)
        self.noted, self.calls = lost, 0

    def start_exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        return partial(self._note, super().start_exchange(sends, recvs, tag), recvs)

    def _note(self, complete: Callable[[], list[bool]], recvs: Sequence[Message]) -> list[bool]:
        arrived = complete()
        for (peer, _), here in zip(recvs, arrived, strict=True):
            if not here:
                self.noted.add((self.calls, 0, peer, self.rank))
        self.calls += 1
        return arrived


@pytest.mark.parametrize("spec", ["relay(binary-tree)", "gossip(ring)"])
def test_on_the_wire_that_loses(spec: str) -> None:
    exchange, layout = parse(spec, Exchange), layout_of(5)
    start, bodies = draw(5, layout, 8)
    lost: set[tuple[int, int, int, int]] = set()
    found = tell_all(exchange, layout, start, bodies, partial(Noting, lost=lost))
    assert 0.1 < len(lost) / (8 * (8 if exchange.name == "relay" else 10)) < 0.5
    expected = own_test(exchange).history(exchange, start, bodies, lambda *message: message in lost)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


# --- types and lengths -----------------------------------------------------------------------------------------------


@EVERY_MISSING
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("topology", TREES)
def test_half_precision_is_relayed_in_single(topology: str, dtype: torch.dtype, missing: str) -> None:
    """All that is lost is the rounding of the result."""
    exchange, layout = parse(f"relay({topology}, missing={missing})", Relay), layout_of(5, 3, dtype=dtype)
    start, bodies = draw(5, layout, 6)
    expected = history(exchange, start, bodies)
    room = torch.finfo(dtype).eps
    np.testing.assert_allclose(tell_all(exchange, layout, start, bodies), expected, rtol=0.51 * room + 1e-6, atol=1e-6)


def test_sums_of_half_precision_do_not_overflow() -> None:
    layout = layout_of(4, dtype=torch.float16)
    bodies = np.full((9, 8, layout.numel), 40000.0)
    for missing in ("counts", "own"):
        assert (tell_all(f"relay(missing={missing})", layout, np.zeros(4), bodies) == 40000).all()


@EVERY_MISSING
@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_pieces_that_are_not_equal_or_empty(length: int, missing: str) -> None:
    exchange, layout = parse(f"relay(double-binary-tree, missing={missing})", Relay), layout_of(length)
    start, bodies = draw(5, layout, 5)
    found = tell_all(exchange, layout, start, bodies)
    assert found.shape == bodies.shape
    np.testing.assert_allclose(found, history(exchange, start, bodies), rtol=1e-12, atol=1e-13)


# --- what it tells of itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "busiest"), [("chain", 2), ("ring", 2), ("binary-tree", 3), ("star", 7), ("double-binary-tree", 2)]
)
def test_all_workers_together_send_as_much_on_every_tree(topology: str, busiest: float) -> None:
    """2 (n - 1) S, and four bytes more for every message; only who sends how much of it differs."""
    layout = layout_of(100, dtype=torch.float32)

    def work(comm: Comm) -> tuple[float, int]:
        wire = metered(comm)
        exchange = parse(f"relay({topology})", Exchange).setup(wire, layout, "weights/0")
        exchange.agree(torch.zeros(layout.total), 0, 1.0)
        return wire.meter.sent(), sum(tally.messages for tally in wire.meter.tallies.values())

    each = on_threads(8, work)
    messages = sum(count for _, count in each)
    assert messages == 14 * parse(topology, Topology).parts
    assert sum(nbytes for nbytes, _ in each) == 14 * 400 + 4 * messages
    assert max(nbytes - 4 * count for nbytes, count in each) == 400 * busiest


def test_it_has_memory_and_no_matrix() -> None:
    assert Relay().mixing(4) is None
    assert not Relay().exact
    assert Relay().tolerates_loss


def test_without_a_beginning_the_initial_values_are_zero() -> None:
    """As updates begin, which is what RelaySGD/Grad relays."""

    def work(comm: Comm) -> float:
        exchange = parse("relay(missing=initial)", Exchange).setup(comm, layout_of(1), "weights/0")
        buffer = torch.full((layout_of(1).total,), 6.0, dtype=torch.float64)
        exchange.agree(buffer, 0, 1.0)
        return float(buffer[0])

    assert on_threads(3, work) == [4.0, 6.0, 4.0]


def test_what_is_no_tree_is_refused_before_anything_is_set_up() -> None:
    with pytest.raises(UserError, match="'one-peer-exponential' holds no tree"):
        parse("relay(one-peer-exponential)", Exchange).check(4)


@pytest.mark.parametrize(("spec", "counts"), [("relay(chain)", 1), ("gossip(chain)", 0)])
def test_messages_are_out_before_anything_has_come(spec: str, counts: int) -> None:
    world, layout = World(2), layout_of(2)
    buffer = torch.ones(layout.total, dtype=layout.dtype)
    complete = parse(spec, Exchange).setup(world.comm(0), layout, "weights/0").start(buffer, 0, 1.0)
    got = torch.zeros(layout.numel + counts, dtype=layout.dtype)
    assert world.comm(1).recv(0, got, "weights/0").wait(1.0) is not LOST
    assert got.eq(1).all()
    reply = torch.tensor([3.0, 3.0] + [1.0] * counts, dtype=layout.dtype)
    world.comm(1).send(0, reply, "weights/0")
    complete()
    assert buffer[: layout.numel].eq(2).all()
