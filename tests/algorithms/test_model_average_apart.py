"""Model averaging between neighbours (D-PSGD in both orders, RelaySGD, stochastic gradient push) beside their formulas.

The oracle has one row per worker, an optimizer in numpy for each, and of the exchange its history in the matrix form of
its own test: X <- agree(X + U), or X <- agree(X) + U. Every worker is compared after every step.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from algorithms.test_model_average import OPTIMIZERS
from catalogue import every
from decentralised_oracle import Array, Point, Quadratics, follow_all, loss_at, make_quadratics, start
from exchange_oracle import Losing, Lost, nothing, often, own_test
from launch_targets import train_small_models
from training import set_up
from workers import SIZES, on_threads

from tutti.algorithms.base import Algorithm
from tutti.algorithms.model_average import ModelAverage
from tutti.comm.base import Comm
from tutti.exchanges.base import Exchange
from tutti.launch import LaunchOptions, launch
from tutti.spec import parse
from tutti.topologies.base import Topology

ORDERS = ("adapt-first", "combine-first")
EVERY_ORDER = pytest.mark.parametrize("order", ORDERS)
EVERY_OPTIMIZER = pytest.mark.parametrize("optimizer", OPTIMIZERS)
EVERY_SIZE = pytest.mark.parametrize("size", SIZES)

# which numbers of the point lie where in a bucket, where every tensor has its own and where one has all: the last
# tensor first, and a tensor begins at a multiple of eight numbers
GAP = -1
CUTS = {"0": [[4, 5, 6], [0, 1, 2, 3]], "4MiB": [[4, 5, 6] + [GAP] * 5 + [0, 1, 2, 3]]}


# --- the oracle ------------------------------------------------------------------------------------------------------


def history(exchange: Exchange, points: Array, cut: str, lost: Lost = nothing) -> Array:
    """What the exchange makes of these points, each bucket for itself."""
    result = np.empty_like(points)
    losing = {} if lost is nothing else {"lost": lost}
    for places in CUTS[cut]:
        where = np.array(places)
        first, bodies = (np.where(where == GAP, 0, array[..., where]) for array in (start(), points))
        mixed = own_test(exchange).history(exchange, first, bodies, **losing)
        result[..., where[where != GAP]] = mixed[..., where != GAP]
    return result


def oracle(
    algorithm: ModelAverage,
    problem: Quadratics,
    steps: int,
    optimizer: str,
    idle: Collection[tuple[int, int]] = (),
    lost: Lost = nothing,
) -> Array:
    cut = "0" if algorithm.bucket == 0 else "4MiB"
    optimizers = [OPTIMIZERS[optimizer]() for _ in range(problem.workers)]
    now, given, points = np.tile(start(), (problem.workers, 1)), [], []
    for step in range(steps):
        gradients = problem.gradients(now, step)
        stepped = np.stack(
            [
                now[worker] if (worker, step) in idle else own.step(now[worker], gradients[worker])
                for worker, own in enumerate(optimizers)
            ]
        )
        given.append(stepped if algorithm.order == "adapt-first" else now)
        mixed = history(algorithm.exchange, np.stack(given), cut, lost)[-1]
        now = mixed if algorithm.order == "adapt-first" else mixed + (stepped - now)
        points.append(now)
    return np.stack(points)


def steps_for(exchange: Exchange, size: int) -> int:
    """Until what the farthest worker had at the first step has come where it is relayed, and a few more."""
    return max(3, size + 1) if exchange.name == "relay" else 4


def check(spec: str, size: int, optimizer: str = "sgd", **how: Any) -> None:
    algorithm, problem = parse(spec, ModelAverage), make_quadratics(size, noise=0.5)
    steps = steps_for(algorithm.exchange, size)
    expected = oracle(algorithm, problem, steps, optimizer, how.get("idle", ()))
    found = follow_all(algorithm, problem, steps, OPTIMIZERS[optimizer]().ours, **how)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


def allowed(exchange: Exchange, size: int) -> bool:
    return not own_test(exchange).refusal(exchange, size)


# --- D-PSGD, RelaySGD, stochastic gradient push ----------------------------------------------------------------------

APART = [
    f"{name}({topology})"
    for name in ("gossip", "relay", "push-sum")
    for topology in every(Topology)
    if allowed(parse(f"{name}({topology})", Exchange), 1)
]


@pytest.mark.parametrize("exchange", APART)
def test_every_topology_at_every_size(exchange: str) -> None:
    """In strict mode, where messages have no names: buckets and parts come in the order in which they were sent."""
    sizes = [size for size in SIZES if allowed(parse(exchange, Exchange), size)]
    assert len(sizes) > 1
    for size in sizes:
        check(f"model-average({exchange}, bucket={0 if size < 8 else '4MiB'})", size, strict=True)
    check(f"model-average({exchange}, bucket=0, order=combine-first)", max({2, 5} & {*sizes}, default=8), strict=True)


@EVERY_OPTIMIZER
@EVERY_ORDER
@EVERY_SIZE
def test_d_psgd(size: int, order: str, optimizer: str) -> None:
    """The optimizer's state is each worker's own."""
    check(f"model-average(gossip(ring), order={order})", size, optimizer)


@EVERY_OPTIMIZER
@pytest.mark.parametrize("missing", ["counts", "own", "initial"])
@pytest.mark.parametrize("topology", ["chain", "binary-tree", "double-binary-tree"])
@EVERY_SIZE
def test_relay_sgd(size: int, topology: str, missing: str, optimizer: str) -> None:
    check(f"model-average(relay({topology}, missing={missing}))", size, optimizer)


@EVERY_OPTIMIZER
@EVERY_SIZE
def test_stochastic_gradient_push(size: int, optimizer: str) -> None:
    check("model-average(push-sum(one-peer-exponential))", size, optimizer)


@pytest.mark.parametrize("exchange", ["relay(double-binary-tree, missing=initial)", "gossip(ring)", "push-sum(ring)"])
@pytest.mark.parametrize(
    "how", ["bucket=0", "bucket=0, update=bucket", "update=bucket", "bucket=0, order=combine-first"]
)
def test_one_bucket_or_several(exchange: str, how: str) -> None:
    check(f"model-average({exchange}, {how})", 5, "momentum")


@pytest.mark.parametrize("how", ["order=adapt-first", "order=combine-first", "update=bucket"])
@pytest.mark.parametrize("exchange", ["relay(chain)", "relay(missing=initial)", "gossip(ring)", "push-sum(ring)"])
def test_a_worker_without_a_backward_takes_part_with_its_weights_as_they_are(exchange: str, how: str) -> None:
    check(f"model-average({exchange}, {how})", 3, "momentum", idle={(0, 0), (1, 1), (2, 1), (1, 2)})


def test_the_presets() -> None:
    """By the names that people know."""
    for name in ("d-psgd", "d-psgd-overlap", "relay-sgd", "relay-sgd-chain", "relay-sgd-tree", "sgp"):
        check(name, 5, "momentum")


@EVERY_ORDER
def test_over_all_reduce_all_orders_have_their_formula(order: str) -> None:
    """With the mean as the exchange; behind a step of combine-first workers differ by their own updates."""
    problem, optimizers = make_quadratics(3), [OPTIMIZERS["sgd"]() for _ in range(3)]
    now, expected = np.tile(start(), (3, 1)), []
    for step in range(4):
        gradients = problem.gradients(now, step)
        update = np.stack([each.step(now[i], gradients[i]) - now[i] for i, each in enumerate(optimizers)])
        mean = (now + update if order == "adapt-first" else now).mean(0)
        now = np.tile(mean, (3, 1)) + (0 if order == "adapt-first" else update)
        expected.append(now)
    found = follow_all(f"model-average(all-reduce, order={order})", problem, 4, OPTIMIZERS["sgd"]().ours)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize(
    ("spec", "equal"),
    [("all-reduce", True), ("all-reduce, order=combine-first", False), ("relay", False), ("corrupt(gossip)", False)],
)
def test_whether_workers_are_equal_follows_from_exchange_and_order(spec: str, equal: bool) -> None:
    algorithm = parse(f"model-average({spec})", Algorithm)
    assert algorithm.equal == equal
    assert algorithm.buffers == ("average" if equal else "local")


# --- lost messages ---------------------------------------------------------------------------------------------------


class LosingEverywhere(Losing):
    def fork(self, name: str) -> Losing:
        return Losing(self.inner.fork(name), self.topology, self.lost)


@pytest.mark.parametrize("update", ["whole", "bucket"])
@pytest.mark.parametrize("exchange", ["relay(chain)", "relay(double-binary-tree, missing=own)", "gossip(ring)"])
def test_training_goes_on_where_messages_get_lost(exchange: str, update: str) -> None:
    """As the exchange's formula says of lost messages; the same step loses the same."""
    algorithm = parse(f"model-average({exchange}, update={update})", ModelAverage)
    topology, problem = algorithm.exchange.topology, make_quadratics(5)  # type: ignore[attr-defined]

    def work(comm: Comm) -> list[Array]:
        points, wire = [], LosingEverywhere(comm, topology, often)
        with set_up(wire, algorithm, Point(), OPTIMIZERS["momentum"]().ours) as run:
            for step in range(6):
                run.replica.optimizer.zero_grad()
                loss_at(run.model(), problem, comm.rank, step).backward()
                run.step()
                points.append(run.model().detach().numpy().copy())
        return points

    found = np.stack(on_threads(5, work), axis=1)
    np.testing.assert_allclose(found, oracle(algorithm, problem, 6, "momentum", lost=often), rtol=1e-10, atol=1e-11)
    assert not np.allclose(found[-1], oracle(algorithm, problem, 6, "momentum")[-1])


# --- real processes --------------------------------------------------------------------------------------------------


def test_over_real_processes_the_weights_are_the_same_bits() -> None:
    specs = ("d-psgd", "d-psgd-overlap", "relay-sgd", "relay-sgd(update=bucket)", "sgp")
    threads, processes = (
        launch(train_small_models, (specs,), LaunchOptions(3, engine=engine), lambda _: None)
        for engine in ("threads", "processes")
    )
    assert threads == processes
    apart = {spec: len(set(each)) for spec, each in threads.items() if spec != "d-psgd"}
    assert set(apart.values()) == {3}, "workers are apart, but on a ring of three, where only rounding can tell them"
    assert len({each[0] for each in threads.values()}) == len(specs) - 1, "stepping by bucket changes nothing"
