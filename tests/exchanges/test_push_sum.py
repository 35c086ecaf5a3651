"""Shares that are pushed, beside the matrix form X <- P X, w <- P w, z = X / w."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from contracts.test_topologies import refusal as topology_refusal
from decentralised_oracle import Array, one_peer_exponential
from exchange_oracle import Losing, by_parts, draw, layout_of, often, repeat, tell_all
from workers import SIZES

from tutti.comm.base import Comm
from tutti.comm.lossy import Lossy
from tutti.exchanges.base import Exchange
from tutti.exchanges.push_sum import PushSum
from tutti.spec import parse
from tutti.topologies.base import Topology

# --- the formula -----------------------------------------------------------------------------------------------------


def shares(topology: Topology, size: int, step: int, part: int) -> Array:
    """P: column j says what becomes of worker j's, in equal shares."""
    matrix = np.eye(size)
    for sender in range(size):
        matrix[topology.peers(sender, size, step, part), sender] = 1
    return matrix / matrix.sum(axis=0)


def history(exchange: PushSum, start: Array, bodies: Array) -> Array:
    """For the contract. Whatever a body has moved by since it was left as z is added to X."""

    def of_part(part: int, _: Array, pieces: Array) -> Array:
        size = pieces.shape[1]
        held, amount, left, result = pieces[0], np.ones((size, 1)), pieces[0], []
        for step, values in enumerate(pieces):
            matrix = shares(exchange.topology, size, step, part)
            held, amount = matrix @ (held + values - left), matrix @ amount
            left = held / amount
            result.append(left)
        return np.stack(result)

    return by_parts(exchange.topology, start, bodies, of_part)


def refusal(exchange: PushSum, size: int) -> str:
    return topology_refusal(exchange.topology, size)


def sent(exchange: PushSum, rank: int, size: int, step: int, lengths: list[int], item: int) -> int:
    """Bytes, for the contract: deg * (S + one number) in single precision at least, for each part's piece."""
    topology = exchange.topology
    return sum(len(topology.peers(rank, size, step, part)) * max(item, 4) * (n + 1) for part, n in enumerate(lengths))


@pytest.mark.parametrize("size", SIZES)
def test_the_formula_itself(size: int) -> None:
    topology = parse("one-peer-exponential", Topology)
    for step in range(5):
        matrix = shares(topology, size, step, 0)
        np.testing.assert_allclose(matrix, one_peer_exponential(size, step))
        np.testing.assert_allclose(matrix.sum(axis=0), 1)


# --- where some get more than others ---------------------------------------------------------------------------------


@dataclass
class Funnel(Topology):
    """A one-way circle in which everybody sends to worker 0 as well; at odd steps that one sends to the last, too."""

    directed: ClassVar[bool] = True
    changing: ClassVar[bool] = True

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        beside = 0 if rank or step % 2 == 0 else size - 1
        return sorted({(rank + 1) % size, beside} - {rank})


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("size", SIZES)
def test_the_formula_where_links_go_one_way_and_change(size: int, strict: bool) -> None:
    exchange, layout = PushSum(Funnel()), layout_of(5, 3)
    start, bodies = draw(size, layout, 6)
    found = tell_all(exchange, layout, start, bodies, strict=strict)
    np.testing.assert_allclose(found, history(exchange, start, bodies), rtol=1e-11, atol=1e-12)


def test_all_come_to_the_mean_although_what_they_get_differs() -> None:
    """Where plain averages by the same shares, each worker's made to add up to one, come to something else."""
    _, (first,) = draw(4, layout_of(3), 1)
    matrix = shares(Funnel(), 4, 1, 0)
    rows = matrix / matrix.sum(axis=1, keepdims=True)
    assert np.abs(np.linalg.matrix_power(rows, 60) @ first - first.mean(0)).max() > 0.05
    found = repeat(PushSum(Funnel()), first, 60)
    np.testing.assert_allclose(found[-1], np.tile(first.mean(0), (4, 1)), rtol=0, atol=1e-5)


def test_one_peer_among_eight_takes_three_steps_to_the_exact_mean() -> None:
    _, (first,) = draw(8, layout_of(3), 1)
    found = repeat(parse("push-sum(one-peer-exponential)", Exchange), first, 3)
    np.testing.assert_allclose(found[-1], np.tile(first.mean(0), (8, 1)), rtol=1e-13)


# --- types, loss -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("topology", ["one-peer-exponential", "chain", "double-binary-tree"])
def test_half_precision_is_held_in_single(topology: str, dtype: torch.dtype) -> None:
    """All that is lost is the rounding of the result."""
    exchange, layout = parse(f"push-sum({topology})", PushSum), layout_of(5, 3, dtype=dtype)
    start, bodies = draw(5, layout, 6)
    found, expected = tell_all(exchange, layout, start, bodies), history(exchange, start, bodies)
    np.testing.assert_allclose(found, expected, rtol=0.51 * torch.finfo(dtype).eps + 1e-6, atol=2e-6)


@pytest.mark.parametrize("length", [0, 1, 7])
def test_pieces_that_are_not_equal_or_empty(length: int) -> None:
    exchange, layout = parse("push-sum(double-binary-tree)", PushSum), layout_of(length)
    start, bodies = draw(5, layout, 4)
    found = tell_all(exchange, layout, start, bodies)
    np.testing.assert_allclose(found, history(exchange, start, bodies), rtol=1e-11, atol=1e-12)


def test_what_is_lost_is_sent_again() -> None:
    """The share of a lost message would be missing for ever: this exchange does without none."""
    assert not PushSum.tolerates_loss
    exchange, layout = parse("push-sum(ring)", PushSum), layout_of(5)
    start, bodies = draw(5, layout, 5)
    expected = tell_all(exchange, layout, start, bodies)

    def losing(comm: Comm) -> Comm:
        return Lossy(comm, p=0.3, deadline=0.0)

    for wire in (losing, lambda comm: Losing(comm, exchange.topology, often)):
        assert np.array_equal(tell_all(exchange, layout, start, bodies, wire), expected)


def test_it_has_memory_and_no_matrix() -> None:
    assert parse("push-sum(complete)", Exchange).mixing(4) is None
    assert not PushSum().exact
