"""Neighbours' averages beside the matrix form X <- W X, and what stands in for a lost message."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from contracts.test_topologies import refusal as topology_refusal
from decentralised_oracle import LINKS, Array, exponential, lazy, metropolis, one_peer_exponential
from exchange_oracle import Losing, Lost, by_parts, draw, layout_of, nothing, often, repeat, tell_all
from workers import SIZES

from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.exchanges.gossip import Gossip
from tutti.spec import parse
from tutti.topologies.base import Topology

# --- the formula -----------------------------------------------------------------------------------------------------


def weights(topology: Topology, rule: str, size: int, step: int, part: int) -> Array:
    """W by its rule, link by link; links may go one way."""
    sends = [topology.peers(worker, size, step, part) for worker in range(size)]
    matrix = np.zeros((size, size))
    for sender, receivers in enumerate(sends):
        for receiver in receivers:
            counted = len(receivers) if rule == "uniform" else max(len(receivers), len(sends[receiver]))
            matrix[receiver, sender] = 1 / (1 + counted)
    if rule == "lazy":
        matrix /= 2
    return matrix + np.diag(1 - matrix.sum(axis=1))


def history(exchange: Gossip, start: Array, bodies: Array, lost: Lost = nothing) -> Array:
    """X <- W X in every step; for the contract. What is lost of a row is given to its diagonal."""

    def of_part(part: int, _: Array, pieces: Array) -> Array:
        mixed = np.empty_like(pieces)
        for step, values in enumerate(pieces):
            size = len(values)
            matrix = weights(exchange.topology, exchange.rule, size, step, part)
            for receiver, sender in np.argwhere(matrix * (1 - np.eye(size))):
                if lost(step, part, int(sender), int(receiver)):
                    matrix[receiver, receiver] += matrix[receiver, sender]
                    matrix[receiver, sender] = 0
            mixed[step] = matrix @ values
        return mixed

    return by_parts(exchange.topology, start, bodies, of_part)


def refusal(exchange: Gossip, size: int) -> str:
    """What the error says, for the contract: the topology's own, or that the mean would not be kept."""
    said = topology_refusal(exchange.topology, size)
    if said or exchange.rule != "uniform":
        return said
    parts = range(exchange.topology.parts)
    sums = [weights(exchange.topology, "uniform", size, 0, part).sum(axis=0) for part in parts]
    spread = {len(exchange.topology.peers(rank, size, part=part)) for rank in range(size) for part in parts}
    assert np.allclose(sums, 1) == (len(spread) == 1 or exchange.topology.changing)
    return "" if np.allclose(sums, 1) else "uniform weights on"


def sent(exchange: Gossip, rank: int, size: int, step: int, lengths: list[int], item: int) -> int:
    """Bytes, for the contract: deg * S, for each part's piece."""
    topology = exchange.topology
    return sum(len(topology.peers(rank, size, step, part)) * item * n for part, n in enumerate(lengths))


@pytest.mark.parametrize("size", SIZES)
def test_the_formula_itself(size: int) -> None:
    for name, links in LINKS.items():
        topology = parse(name, Topology)
        np.testing.assert_allclose(weights(topology, "metropolis", size, 0, 0), metropolis(size, links(size)))
        np.testing.assert_allclose(weights(topology, "lazy", size, 0, 0), lazy(size, links(size)))
    for rule in ("metropolis", "uniform"):
        one_way, one_peer = (parse(name, Topology) for name in ("exponential", "one-peer-exponential"))
        np.testing.assert_allclose(weights(one_way, rule, size, 0, 0), exponential(size))
        for step in range(4):
            expected = one_peer_exponential(size, step)
            np.testing.assert_allclose(weights(one_peer, rule, size, step, 0), expected)


# --- what it does to all together ------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["ring", "chain", "double-binary-tree", "one-peer-exponential", "random-pairing"])
@pytest.mark.parametrize("rule", ["metropolis", "lazy"])
def test_the_mean_is_kept_and_workers_come_nearer(topology: str, rule: str) -> None:
    """Step by step, each with what came out of the one before."""
    _, (first,) = draw(5, layout_of(7), 1)
    every = [first, *repeat(parse(f"gossip({topology}, rule={rule})", Exchange), first, 40)]
    apart = [float(np.linalg.norm(values - values.mean(0))) for values in every]
    assert all(after <= before + 1e-12 for before, after in pairwise(apart))
    assert apart[-1] < 0.05 * apart[0]
    np.testing.assert_allclose(every[-1].mean(0), first.mean(0), atol=1e-13)


def test_three_steps_of_one_peer_among_eight_give_the_exact_mean() -> None:
    _, (first,) = draw(8, layout_of(4), 1)
    found = repeat(parse("gossip(one-peer-exponential)", Exchange), first, 3)
    np.testing.assert_allclose(found[-1], np.tile(first.mean(0), (8, 1)), rtol=1e-13)


# --- weights in the package ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_its_matrix_is_known_before_anything_is_set_up(size: int) -> None:
    for rule in ("metropolis", "uniform", "lazy"):
        exchange = parse(f"gossip(one-peer-exponential, rule={rule})", Exchange)
        for step in range(5):
            found = exchange.mixing(size, step)
            assert found is not None
            np.testing.assert_allclose(found, weights(parse("one-peer-exponential", Topology), rule, size, step, 0))


def test_two_trees_have_no_one_matrix() -> None:
    assert parse("gossip(double-binary-tree)", Exchange).mixing(4) is None


def test_uniform_weights_are_refused_before_anything_is_set_up() -> None:
    with pytest.raises(UserError, match="degrees go from 1 to 2; take the metropolis rule"):
        parse("gossip(chain, rule=uniform)", Exchange).check(3)


# --- half precision, loss --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("topology", ["ring", "double-binary-tree"])
def test_other_types_of_numbers(topology: str, dtype: torch.dtype) -> None:
    exchange, layout = parse(f"gossip({topology})", Gossip), layout_of(5, 3, dtype=dtype)
    start, bodies = draw(5, layout, 3)
    expected = history(exchange, start, bodies)
    room = 4 * torch.finfo(dtype).eps * np.abs(bodies).max()
    np.testing.assert_allclose(tell_all(exchange, layout, start, bodies), expected, rtol=0, atol=room)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spec", ["gossip", "gossip(double-binary-tree)", "gossip(complete, rule=lazy)"])
def test_a_lost_message_s_weight_goes_to_the_worker_itself(spec: str, size: int) -> None:
    exchange, layout = parse(spec, Gossip), layout_of(5, 3)
    start, bodies = draw(size, layout, 6)
    found = tell_all(exchange, layout, start, bodies, lambda comm: Losing(comm, exchange.topology, often))
    np.testing.assert_allclose(found, history(exchange, start, bodies, often), rtol=1e-12, atol=1e-13)
    if size > 1:
        assert not np.allclose(found, history(exchange, start, bodies)), "something was lost"


def test_a_lost_message_by_hand() -> None:
    """Three in a ring, 0 hears nothing from 1: two thirds of its own, one third of worker 2's; the others as ever."""
    layout = layout_of(1)
    bodies = np.array([[[3.0], [6.0], [12.0]]])
    found = tell_all(
        Gossip(),
        layout,
        np.zeros(1),
        bodies,
        lambda comm: Losing(comm, parse("ring", Topology), lambda *message: message == (0, 0, 1, 0)),
    )
    np.testing.assert_allclose(found, [[[6.0], [7.0], [7.0]]])
