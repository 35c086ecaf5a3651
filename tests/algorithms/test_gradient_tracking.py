"""Gradient tracking beside its papers' formula, where it converges, and what it refuses.

X_t+1 = W (X_t - lr Y_t),    Y_t+1 = W Y_t + G_t+1 - G_t,    Y_0 = G_0
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from decentralised_oracle import (
    LINKS,
    Array,
    Quadratics,
    Update,
    exponential,
    follow_all,
    lazy,
    make_quadratics,
    metropolis,
    one_peer_exponential,
    plain,
    sgd,
    start,
    with_adam,
    with_momentum,
)
from torch import Tensor
from training import adam, set_up, train
from workers import SIZES, on_threads

from tutti.algorithms.base import Algorithm
from tutti.algorithms.gradient_tracking import GradientTracking
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.spec import parse

LR, STEPS = 0.1, 8
Mixing = Callable[[int, int], Array]  # workers, step

MIXINGS: dict[str, Mixing] = {
    **{f"gossip({name})": lambda n, _, links=links: metropolis(n, links(n)) for name, links in LINKS.items()},
    "gossip(ring, rule=lazy)": lambda n, _: lazy(n, LINKS["ring"](n)),
    "gossip(exponential)": lambda n, _: exponential(n),
    "gossip(one-peer-exponential)": one_peer_exponential,
    "all-reduce(ring, mean)": lambda n, _: np.full((n, n), 1 / n),
}


def oracle(problem: Quadratics, mixing: Mixing, steps: int) -> Array:
    """From the paper: y is a gradient, and all workers' y have the mean of all workers' gradients."""
    x = np.tile(start(), (problem.workers, 1))
    g = problem.gradients(x, 0)
    y, points = g, []
    for step in range(steps):
        matrix = mixing(problem.workers, step)
        x = matrix @ (x - LR * y)
        after = problem.gradients(x, step + 1)
        y, g = matrix @ y + after - g, after
        np.testing.assert_allclose(y.mean(axis=0), g.mean(axis=0), rtol=1e-9, atol=1e-9)
        points.append(x)
    return np.stack(points)


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("exchange", MIXINGS)
@pytest.mark.parametrize("size", SIZES)
def test_the_formula_on_every_topology(size: int, exchange: str, strict: bool) -> None:
    problem = make_quadratics(size, noise=0.5)
    expected = oracle(problem, MIXINGS[exchange], STEPS)
    found = follow_all(f"gradient-tracking({exchange}, bucket=0)", problem, STEPS, sgd(LR), strict=strict)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_what_holds_for_all_workers_follows_from_the_exchange() -> None:
    assert str(GradientTracking()) == "gradient-tracking(gossip(ring))"
    assert (GradientTracking().equal, GradientTracking().buffers) == (False, "local")
    exact = parse("gradient-tracking(all-reduce)", Algorithm)
    assert (exact.equal, exact.buffers) == (True, "average")


def test_it_finds_the_optimum_of_the_sum_where_gossip_alone_does_not() -> None:
    """Constant learning rate, whole gradients, and workers whose own optima are far apart."""
    problem = make_quadratics(3)
    found, beside = (
        follow_all(f"{name}(gossip(chain))", problem, 80, sgd(0.2))[-1]
        for name in ("gradient-tracking", "model-average")
    )
    np.testing.assert_allclose(found, np.tile(problem.optimum(), (3, 1)), rtol=0, atol=1e-5)
    assert np.abs(beside - problem.optimum()).max(axis=1).min() > 0.2, "every worker is somewhere else"
    assert np.abs(beside.mean(axis=0) - problem.optimum()).max() > 0.1, "and so is their mean"


# --- any optimizer ---------------------------------------------------------------------------------------------------


def with_updates(problem: Quadratics, mixing: Array, steps: int, update: Update) -> Array:
    """The same formula where updates are tracked, - lr Y in the place of Y: X <- W (X + Y), Y <- W Y + U' - U."""
    x = np.tile(start(), (problem.workers, 1))
    u = update(x, problem.gradients(x, 0), 0)
    y, points = u, []
    for step in range(1, steps + 1):
        x = mixing @ (x + y)
        after = update(x, problem.gradients(x, step), step)
        y, u = mixing @ y + after - u, after
        points.append(x)
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
    expected = with_updates(problem, metropolis(5, LINKS["ring"](5)), STEPS, update())
    found = follow_all(f"gradient-tracking(bucket={bucket})", problem, STEPS, optimizer)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


# --- who has no gradient ---------------------------------------------------------------------------------------------


def test_a_worker_without_a_backward_takes_part_with_no_update() -> None:
    problem, idle = make_quadratics(5), [(1, 0), (1, 2), (3, 2)]
    expected = with_updates(problem, metropolis(5, LINKS["ring"](5)), STEPS, plain(LR, idle))
    found = follow_all("gradient-tracking(bucket=0)", problem, STEPS, sgd(LR), idle=idle)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


# --- what it sends, keeps and refuses --------------------------------------------------------------------------------


def test_every_neighbour_gets_two_messages_per_step_of_two_kinds() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm, "gradient-tracking(gossip(ring))", optimizer=sgd(LR)) as run:
            before = run.meter.sent("weights")  # those of the beginning
            train(run, range(3))
            (bucket,) = run.replica.buckets
            expected = 3 * 2 * bucket.weights.nbytes
            assert (run.meter.sent("weights") - before, run.meter.sent("gradients")) == (expected, expected)

    on_threads(3, work)


@dataclass
class Recorder(Exchange):
    """Leaves everything as it is, and notes who asked when."""

    notes: list[tuple[Any, ...]] = field(default_factory=list)

    def mixing(self, workers: int, step: int = 0) -> Any:
        return np.eye(workers)

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        self.notes.append((self.tag, threading.current_thread().name.startswith("tutti-lane"), step, samples))
        if step == 2:
            raise KeyError("the exchange's own error")


def test_everything_is_exchanged_on_the_lane_and_an_error_comes_out_of_the_step() -> None:
    recorder = Recorder()
    with set_up(World(1).comm(0), GradientTracking(recorder, bucket=0)) as run:
        for step in range(2):
            run.samples = 5 + step
            train(run, range(step, step + 1))
        with pytest.raises(KeyError, match="the exchange's own error"):
            train(run, range(2, 3))
    kinds = [f"{kind}/{index}" for index in range(4) for kind in ("weights", "gradients")]
    assert recorder.notes[:16] == [(tag, True, step, 5.0 + step) for step in range(2) for tag in kinds]


def test_corrections_of_all_workers_cancel_and_come_back() -> None:
    """The mean of all is zero, so that the mean model steps by the mean update."""

    def work(comm: Comm) -> list[Tensor]:
        with set_up(comm, "gradient-tracking(gossip(chain), bucket=0)") as run:
            train(run, range(3))
            state = run.state_dict()
            saved = [memory.clone() for memory in state["algorithm"]["memory"]]
            train(run, range(3, 5))
            run.load_state_dict(state)
            again = run.state_dict()["algorithm"]["memory"]
            assert all(torch.equal(a, b) for a, b in zip(again, saved, strict=True))
            return saved

    for corrections in zip(*on_threads(5, work), strict=True):
        assert corrections[0].abs().max() > 1e-4
        torch.testing.assert_close(sum(corrections), torch.zeros_like(corrections[0]), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "exchange", ["relay(chain)", "push-sum(ring)", "all-reduce(ring, sum)", "all-reduce(star, median)"]
)
def test_what_does_not_average_by_a_matrix_is_refused(exchange: str) -> None:
    with pytest.raises(UserError) as refused:
        on_threads(3, lambda comm: set_up(comm, f"gradient-tracking({exchange})"))
    assert str(refused.value) == (
        f"'gradient-tracking' needs an exchange that averages by a matrix, and '{exchange}' does not; use gossip(ring)"
    )
