"""D2 beside its paper's formula, where it converges, and what it refuses.

X_1 = W (X_0 - lr G_0),    X_t+1 = W (2 X_t - X_t-1 - lr G_t + lr G_t-1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from decentralised_oracle import (
    LINKS,
    Array,
    Quadratics,
    Update,
    follow_all,
    lazy,
    make_quadratics,
    metropolis,
    plain,
    sgd,
    start,
    with_adam,
    with_momentum,
)
from torch import Tensor
from training import adam, batch_of, loss_of, set_up
from workers import SIZES, on_threads

from tutti.algorithms.base import Algorithm
from tutti.algorithms.d2 import D2
from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.spec import parse

LR, STEPS = 0.1, 8


def oracle(problem: Quadratics, mixing: Array, steps: int) -> Array:
    """From the paper, with the gradients of the last two steps."""
    before = np.tile(start(), (problem.workers, 1))
    before_gradients = problem.gradients(before, 0)
    points = [mixing @ (before - LR * before_gradients)]
    for step in range(1, steps):
        now, gradients = points[-1], problem.gradients(points[-1], step)
        points.append(mixing @ (2 * now - before - LR * gradients + LR * before_gradients))
        before, before_gradients = now, gradients
    return np.stack(points)


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("topology", LINKS)
@pytest.mark.parametrize("size", SIZES)
def test_the_formula_on_every_topology(size: int, topology: str, strict: bool) -> None:
    problem = make_quadratics(size, noise=0.5)
    expected = oracle(problem, lazy(size, LINKS[topology](size)), STEPS)
    found = follow_all(f"d2(gossip({topology}, rule=lazy), bucket=0)", problem, STEPS, sgd(LR), strict=strict)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bucket", ["0", "4MiB"])
@pytest.mark.parametrize(("size", "topology"), [(3, "ring"), (5, "ring"), (8, "chain")])
def test_the_formula_with_metropolis_weights_where_they_will_do(size: int, topology: str, bucket: str) -> None:
    problem = make_quadratics(size)
    expected = oracle(problem, metropolis(size, LINKS[topology](size)), STEPS)
    found = follow_all(f"d2(gossip({topology}), bucket={bucket})", problem, STEPS, sgd(LR))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [2, 5, 8])
def test_over_all_reduce_all_hold_the_same_weights(size: int) -> None:
    problem = make_quadratics(size)
    expected = oracle(problem, np.full((size, size), 1 / size), STEPS)
    found = follow_all("d2(all-reduce(ring, mean))", problem, STEPS, sgd(LR))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    assert all(np.array_equal(found[:, worker], found[:, 0]) for worker in range(size))


def test_what_holds_for_all_workers_follows_from_the_exchange() -> None:
    assert not D2().equal
    assert D2().buffers == "local"
    exact = parse("d2(all-reduce)", Algorithm)
    assert (exact.equal, exact.buffers) == (True, "average")


# --- where it comes to -----------------------------------------------------------------------------------------------


def test_it_finds_the_optimum_of_the_sum_where_gossip_alone_does_not() -> None:
    """Constant learning rate, whole gradients, and workers whose own optima are far apart."""
    problem = make_quadratics(3)
    found, beside = (
        follow_all(f"{name}(gossip(chain))", problem, 80, sgd(0.2))[-1] for name in ("d2", "model-average")
    )
    np.testing.assert_allclose(found, np.tile(problem.optimum(), (3, 1)), rtol=0, atol=1e-5)
    assert np.abs(beside - problem.optimum()).max(axis=1).min() > 0.2, "every worker is somewhere else"
    assert np.abs(beside.mean(axis=0) - problem.optimum()).max() > 0.1, "and so is their mean"


def disagreement(mixing: Array, steps: int) -> float:
    """How far workers are from their mean where the losses are straight: nothing but mixing brings them together."""
    size = len(mixing)
    straight = Quadratics(np.tile(1e-4 * np.eye(7), (size, 1, 1)), 1e4 * make_quadratics(size).targets)
    points = oracle(straight, mixing, steps)[-1]
    return float(np.abs(points - points.mean(axis=0)).max())


def test_why_the_border_is_refused() -> None:
    """At -1/3 what has once been different swings on for ever, below it swings up."""
    ring, cube = LINKS["ring"](8), {frozenset((i, i ^ bit)) for i in range(8) for bit in (1, 2, 4)}
    assert disagreement(lazy(8, ring), 200) < 1e-4
    assert disagreement(metropolis(8, ring), 200) > 0.01
    assert disagreement(metropolis(8, cube), 200) > 1e3
    assert disagreement(lazy(8, cube), 200) < 1e-4


# --- any optimizer ---------------------------------------------------------------------------------------------------


def with_updates(problem: Quadratics, mixing: Array, steps: int, update: Update) -> Array:
    """The same formula with any update in the place of - lr G."""
    before = np.tile(start(), (problem.workers, 1))
    before_updates = update(before, problem.gradients(before, 0), 0)
    points = [mixing @ (before + before_updates)]
    for step in range(1, steps):
        now = points[-1]
        updates = update(now, problem.gradients(now, step), step)
        points.append(mixing @ (2 * now - before + updates - before_updates))
        before, before_updates = now, updates
    return np.stack(points)


@pytest.mark.parametrize("bucket", ["0", "4MiB"])
@pytest.mark.parametrize(
    ("optimizer", "update"),
    [
        (sgd(0.05, momentum=0.9, weight_decay=0.02), lambda: with_momentum(0.05, 0.9, 0.02)),
        (adam, lambda: with_adam(0.01)),
    ],
    ids=["momentum", "adam"],
)
def test_the_formula_with_other_optimizers(optimizer: Any, update: Callable[[], Update], bucket: str) -> None:
    problem = make_quadratics(5)
    expected = with_updates(problem, lazy(5, LINKS["ring"](5)), STEPS, update())
    found = follow_all(f"d2(bucket={bucket})", problem, STEPS, optimizer)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


# --- who has no gradient ---------------------------------------------------------------------------------------------


def test_a_worker_without_a_backward_takes_part_with_no_update() -> None:
    problem, idle = make_quadratics(5), [(1, 0), (1, 2), (3, 2)]
    expected = with_updates(problem, lazy(5, LINKS["ring"](5)), STEPS, plain(LR, idle))
    found = follow_all("d2(bucket=0)", problem, STEPS, sgd(LR), idle=idle)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


# --- what it refuses -------------------------------------------------------------------------------------------------


def refusal(spec: str | Algorithm, workers: int) -> str:
    algorithm = parse(spec, Algorithm) if isinstance(spec, str) else spec
    with pytest.raises(UserError) as refused:
        algorithm.check(workers)
    return str(refused.value)


@pytest.mark.parametrize(
    ("exchange", "workers", "eigenvalue"),
    [("gossip(ring)", 4, "-0.333"), ("gossip(ring)", 8, "-0.333"), ("gossip(hypercube)", 8, "-0.500")],
)
def test_a_matrix_on_or_below_the_border(exchange: str, workers: int, eigenvalue: str) -> None:
    assert refusal(f"d2({exchange})", workers) == (
        f"'d2' needs a mixing matrix with all eigenvalues above -1/3, and '{exchange}' over {workers} workers has one "
        f"of {eigenvalue}; use rule=lazy"
    )
    parse(f"d2({exchange[:-1]}, rule=lazy))", Algorithm).check(workers)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7])
def test_a_ring_of_an_odd_number_is_above_the_border(workers: int) -> None:
    parse("d2(gossip(ring))", Algorithm).check(workers)


@pytest.mark.parametrize(
    "exchange",
    ["gossip(random-pairing)", "gossip(one-peer-exponential, rule=lazy)", "relay(chain)", "push-sum(exponential)"],
)
def test_what_has_a_memory_or_changes(exchange: str) -> None:
    text = str(parse(f"d2({exchange})", Algorithm).members()["exchange"])
    assert refusal(f"d2({exchange})", 4) == (
        f"'d2' needs an exchange that averages by one matrix, the same at every step, and '{text}' over 4 workers does "
        "not; use gossip(ring, rule=lazy)"
    )


@dataclass
class Given(Exchange):
    """A matrix from elsewhere, which changes at the step after `until`."""

    matrix: Any = None
    until: int = 100

    def __str__(self) -> str:
        return "given"

    def mixing(self, workers: int, step: int = 0) -> Any:
        return self.matrix if step <= self.until else np.eye(workers)

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        raise AssertionError("it is refused before")


def test_a_matrix_that_changes_later() -> None:
    mean = np.full((3, 3), 1 / 3)
    D2(Given(mean)).check(3)
    assert "the same at every step" in refusal(D2(Given(mean, until=3)), 3)


def test_a_matrix_that_is_not_symmetric_or_no_mean() -> None:
    assert refusal("d2(gossip(exponential))", 5) == (
        "'d2' needs an exchange that averages with the same weights in both directions, and 'gossip(exponential)' over "
        "5 workers does not; use gossip(ring, rule=lazy)"
    )
    assert "in both directions" in refusal("d2(all-reduce(ring, sum))", 3)


def test_it_is_refused_before_anything_is_set_up() -> None:
    with pytest.raises(UserError, match=r"above -1/3, and 'gossip\(ring\)' over 4 workers has one of -0\.333"):
        on_threads(4, lambda comm: set_up(comm, "d2(gossip(ring))"))


# --- its state -------------------------------------------------------------------------------------------------------


def test_the_correction_is_saved_and_comes_back() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm, "d2(gossip(chain, rule=lazy), bucket=0)") as run:
            for step in range(2):
                run.replica.optimizer.zero_grad()
                loss_of(run.model, batch_of(comm.rank, step)).backward()
                run.step()
            state = run.state_dict()
            saved = [memory.clone() for memory in state["algorithm"]["memory"]]
            assert any(memory.abs().max() > 1e-4 for memory in saved)
            run.step()
            assert all(torch.equal(a, b) for a, b in zip(state["algorithm"]["memory"], saved, strict=True))
            run.load_state_dict(state)
            again = run.state_dict()["algorithm"]["memory"]
            assert all(torch.equal(a, b) for a, b in zip(again, saved, strict=True))

    on_threads(3, work)


def test_corrections_of_all_workers_cancel() -> None:
    """So that the mean model steps by the mean update."""

    def work(comm: Comm) -> list[Tensor]:
        with set_up(comm, "d2(gossip(ring, rule=lazy), bucket=0)") as run:
            for step in range(3):
                run.replica.optimizer.zero_grad()
                loss_of(run.model, batch_of(comm.rank, step)).backward()
                run.step()
            return run.state_dict()["algorithm"]["memory"]

    for corrections in zip(*on_threads(5, work), strict=True):
        torch.testing.assert_close(sum(corrections), torch.zeros_like(corrections[0]), rtol=0, atol=1e-15)
