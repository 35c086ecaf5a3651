"""Gossip and relay, held against plain powers of the mixing matrix and against hop counts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tutti.errors import UserError
from tutti.graph import make_mixing
from tutti.lab.topology_spread import as_json, describe, is_tree, spread
from tutti.spec import parse
from tutti.topologies.base import Topology


def named(spec: str) -> Topology:
    return parse(spec, Topology)


def test_gossip_is_powers_of_the_mixing_matrix() -> None:
    each = spread(named("torus"), 12, source=5, rounds=6)
    matrix = make_mixing(named("torus"), 12)
    for at in range(7):
        assert each.gossip[at] == pytest.approx(np.linalg.matrix_power(matrix, at)[:, 5])


def test_gossip_follows_the_steps_of_a_changing_topology() -> None:
    each = spread(named("one-peer-exponential"), 8, step=1)
    assert each.gossip[1].tolist() == [0.5, 0, 0.5, 0, 0, 0, 0, 0]
    assert each.gossip[3] == pytest.approx([1 / 8] * 8)
    assert each.gossip_rounds == 3


@pytest.mark.parametrize("spec", ["chain", "ring", "double-binary-tree", "exponential", "random-pairing", "star"])
def test_nothing_of_the_message_is_lost_by_gossip(spec: str) -> None:
    each = spread(named(spec), 9, source=4)
    assert each.gossip.sum(axis=1) == pytest.approx(1)
    assert (each.gossip >= 0).all()


def test_relay_on_a_chain_as_in_figure_3_1() -> None:
    """The fourth worker's message goes one worker further in every round, with the same weight for all."""
    each = spread(named("chain"), 8, source=3)
    for at, row in enumerate(each.relay):
        assert row.tolist() == [1 / 8 if abs(worker - 3) <= at else 0 for worker in range(8)]
    assert each.relay_rounds == 4
    assert each.way == "relayed on the tree itself"
    assert each.rounds == 7


def test_gossip_comes_as_far_as_relay_but_not_as_much() -> None:
    each = spread(named("chain"), 16)
    assert ((each.gossip > 0) == (each.relay > 0)).all()
    assert each.gossip[15].min() < 1e-5
    assert each.gossip_rounds > 10 * each.relay_rounds


def test_two_trees_bring_one_half_each() -> None:
    each = spread(named("double-binary-tree"), 16)
    assert set(np.round(each.relay * 16, 12).ravel()) == {0, 0.5, 1}
    assert each.way == "relayed on its 2 trees"
    assert (each.relay[-1] == 1 / 16).all()


def test_relay_on_a_ring_takes_a_tree_that_does_not_close_it() -> None:
    """From worker 3 of 6 the tree of worker 0 has no link between 3 and 4."""
    each = spread(named("ring"), 6, source=3)
    assert each.way == "relayed on the tree of shortest ways from worker 0"
    assert [int(np.argmax(each.relay[:, worker] > 0)) for worker in range(6)] == [3, 2, 1, 0, 5, 4]


def test_relay_by_the_first_way_where_links_are_one_way_or_change() -> None:
    each = spread(named("exponential"), 8)
    assert each.way == "relayed by the first way there is"
    assert [int(np.argmax(each.relay[:, worker] > 0)) for worker in range(8)] == [0, 1, 1, 2, 1, 2, 2, 3]
    assert spread(named("one-peer-exponential"), 8).relay_rounds == 3


def test_sentences() -> None:
    relay, gossip = describe(spread(named("chain"), 8, source=3))
    assert relay == "Relay: everybody has exactly 1/8 after 4 rounds, relayed on the tree itself."
    assert gossip == (
        "Gossip: after 4 rounds the least share is 9.88 % of 1/8; all are within 10 % of 1/8 after 27 rounds."
    )
    assert "after 1 round the least share is 100 % of 1/6" in describe(spread(named("complete"), 6))[1]
    assert "below 0.01 % of 1/64" in describe(spread(named("ring"), 64))[1]


def test_gossip_that_takes_too_long_to_wait_for() -> None:
    each = spread(named("chain"), 128)
    assert each.gossip_rounds == math.inf
    assert "not all are within 10 % of 1/128 after 10,000 rounds" in describe(each)[1]
    assert as_json(each)["gossip_rounds"] is None
    json.dumps(as_json(each), allow_nan=False)


def test_fewer_rounds_than_it_takes() -> None:
    each = spread(named("chain"), 8, rounds=2)
    assert each.rounds == 2
    assert each.relay[-1].tolist() == [1 / 8] * 3 + [0] * 5
    assert "after 2 rounds the least share is 0 % of 1/8" in describe(each)[1]


def test_one_worker() -> None:
    each = spread(named("ring"), 1)
    assert each.relay_rounds == each.gossip_rounds == 0
    assert each.gossip.tolist() == each.relay.tolist() == [[1.0]] * 4


def test_a_worker_that_is_not_there() -> None:
    with pytest.raises(UserError, match="there is no worker 8 among 8: take one from 0 to 7"):
        spread(named("ring"), 8, source=8)


def test_trees() -> None:
    assert all(is_tree(named(spec), 9) for spec in ("chain", "star", "binary-tree", "double-binary-tree"))
    assert not any(is_tree(named(spec), 9) for spec in ("ring", "torus", "exponential", "random-pairing"))
    assert is_tree(named("ring"), 2)
