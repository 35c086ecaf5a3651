"""Every worker steps alone and all agree on the updates: beside the formulas of RelaySGD on gradients and of averaging.

The oracle keeps n models, n optimizers and the messages on all links in numpy, in float64, on quadratics that differ
from worker to worker; its trees are drawn by hand. Every worker is compared after every step.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from algorithms.test_model_average import OPTIMIZERS, averaged_models, follow
from contracts.test_algorithms import Array
from torch import Tensor, nn
from training import adam, batch_of, loss_of, momentum, normed_model, set_up, small_model, train, train_alone, weights
from workers import SIZES, on_threads

from tutti.algorithms.base import Algorithm
from tutti.algorithms.update_average import UpdateAverage
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.exchanges.base import Exchange
from tutti.spec import parse

STEPS = 8  # more than the longest way takes
PARTS = {"first": 7, "second": 4}  # the tensors of the model
Edges = list[tuple[int, int]]

# --- the problem -----------------------------------------------------------------------------------------------------


class Quadratic(nn.Module):
    """(x - b)' A (x - b) / 2 with another A for every worker and another b for every worker and step."""

    def __init__(self) -> None:
        super().__init__()
        for name, numel in PARTS.items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(start(name, numel))))

    def forward(self, worker: int, step: int) -> Tensor:
        losses = []
        for name, numel in PARTS.items():
            matrix, target = (torch.from_numpy(a) for a in problem(worker, step, numel))
            away = getattr(self, name) - target
            losses.append(away @ matrix @ away / 2)
        return torch.stack(losses).sum()


def start(name: str, numel: int) -> Array:
    return np.random.default_rng(len(name)).normal(size=numel)


def problem(worker: int, step: int, numel: int) -> tuple[Array, Array]:
    root = np.random.default_rng((worker, numel)).normal(size=(numel, numel)) / numel
    return root @ root.T + np.eye(numel), np.random.default_rng((worker, step, numel)).normal(size=numel)


# --- the oracle ------------------------------------------------------------------------------------------------------


def chain(size: int) -> list[Edges]:
    return [[(worker, worker + 1) for worker in range(size - 1)]]


def binary_tree(size: int) -> list[Edges]:
    return [[(worker, (worker - 1) // 2) for worker in range(1, size)]]


def double_binary_tree(size: int) -> list[Edges]:
    """Drawn by hand: in the second tree the inner workers of the first are leaves, but for the odd one out."""
    return {
        1: [[], []],
        2: [[(0, 1)], [(0, 1)]],
        3: [[(0, 1), (1, 2)], [(1, 2), (2, 0)]],
        5: [[(0, 1), (2, 1), (1, 3), (4, 3)], [(1, 2), (3, 2), (2, 4), (0, 4)]],
        8: [
            [(0, 1), (2, 1), (1, 3), (4, 3), (3, 5), (6, 7), (7, 5)],
            [(7, 6), (5, 6), (6, 4), (3, 4), (4, 2), (1, 0), (0, 2)],
        ],
    }[size]


TREES: dict[str, Callable[[int], list[Edges]]] = {
    "chain": chain,
    "binary-tree": binary_tree,
    "double-binary-tree": double_binary_tree,
}


@dataclass
class Relayed:
    """One tensor of the model at all workers, a piece of it over each tree."""

    size: int
    trees: list[Edges]
    models: list[Array]
    messages: list[dict[tuple[int, int], Array | float]] = field(init=False)  # of the step before, by tree and link

    def __post_init__(self) -> None:
        self.messages = [defaultdict(float) for _ in self.trees]

    def step(self, updates: list[Array]) -> None:
        """m_i->j = u_i + sum of m_k->i of the step before over k other than j;  x_i = x_i + (u_i + sum m_j->i) / n"""
        added = [np.zeros_like(model) for model in self.models]
        for at, edges in enumerate(self.trees):
            piece = np.array_split(np.arange(len(self.models[0])), len(self.trees))[at]
            neighbours = [[j for i, j in [*edges, *((b, a) for a, b in edges)] if i == me] for me in range(self.size)]
            before, sent = self.messages[at], {}
            for i, beside in enumerate(neighbours):
                for j in beside:
                    sent[i, j] = updates[i][piece] + sum(before[k, i] for k in beside if k != j)
            for i, beside in enumerate(neighbours):
                added[i][piece] = updates[i][piece] + sum(sent[j, i] for j in beside)
            self.messages[at] = defaultdict(float, sent)
        self.models = [model + more / self.size for model, more in zip(self.models, added, strict=True)]


def relay_sgd_on_gradients(size: int, topology: str, optimizer: str) -> tuple[Array, Array]:
    """After every step, at every worker: all tensors one behind another; and what each had added itself."""
    tensors = {n: Relayed(size, TREES[topology](size), [start(n, k)] * size) for n, k in PARTS.items()}
    optimizers = {name: [OPTIMIZERS[optimizer]() for _ in range(size)] for name in PARTS}
    models, all_updates = [], []
    for step in range(STEPS):
        row = []
        for name, numel in PARTS.items():
            updates = []
            for worker, model in enumerate(tensors[name].models):
                matrix, target = problem(worker, step, numel)
                updates.append(optimizers[name][worker].step(model, matrix @ (model - target)) - model)
            tensors[name].step(updates)
            row.append(updates)
        models.append([np.concatenate([t.models[worker] for t in tensors.values()]) for worker in range(size)])
        all_updates.append([np.concatenate([updates[worker] for updates in row]) for worker in range(size)])
    return np.array(models), np.array(all_updates)


@pytest.mark.parametrize("topology", ["chain", "binary-tree"])
@pytest.mark.parametrize("size", SIZES)
def test_the_oracle_itself(size: int, topology: str) -> None:
    """Every update arrives once, a step late for each worker on the way: the paper's other form of the same."""
    hops = np.full((size, size), np.inf)
    np.fill_diagonal(hops, 0)
    for a, b in TREES[topology](size)[0]:
        hops[a, b] = hops[b, a] = 1
    for middle in range(size):
        hops = np.minimum(hops, hops[:, [middle]] + hops[[middle], :])
    late = np.maximum(0, hops - 1).astype(int)
    models, updates = relay_sgd_on_gradients(size, topology, "momentum")
    begin = np.concatenate([start(name, numel) for name, numel in PARTS.items()])
    for step in range(STEPS):
        for i in range(size):
            arrived = [updates[: max(0, step + 1 - late[i, j]), j].sum(axis=0) for j in range(size)]
            np.testing.assert_allclose(models[step, i], begin + sum(arrived) / size, rtol=1e-11)


# --- relay -----------------------------------------------------------------------------------------------------------


def minimise(comm: Comm, algorithm: str | Algorithm, optimizer: str) -> Array:
    """The model after every step, as this worker has it."""
    models = []
    with set_up(comm, algorithm, Quadratic(), OPTIMIZERS[optimizer]().ours) as run:
        for step in range(STEPS):
            run.replica.optimizer.zero_grad()
            run.model(comm.rank, step).backward()
            run.step()
            models.append(weights(run.model).numpy())
    return np.array(models)


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("topology", TREES)
@pytest.mark.parametrize("size", SIZES)
def test_over_relay_it_is_relay_sgd_on_gradients(size: int, topology: str, optimizer: str, strict: bool) -> None:
    expected, _ = relay_sgd_on_gradients(size, topology, optimizer)
    algorithm = f"update-average(relay({topology}, missing=initial), bucket=0)"
    found = on_threads(size, lambda comm: minimise(comm, algorithm, optimizer), strict=strict)
    np.testing.assert_allclose(np.stack(found, axis=1), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("topology", ["chain", "binary-tree"])
def test_the_cut_into_buckets_does_not_change_the_result(topology: str) -> None:
    def work(comm: Comm, bucket: str) -> Array:
        return minimise(comm, f"update-average(relay({topology}, missing=initial), bucket={bucket})", "adam")

    one, other = (on_threads(5, lambda comm, bucket=bucket: work(comm, bucket)) for bucket in ("0", "4MiB"))
    assert np.array_equal(one, other)


def test_without_further_gradients_all_workers_come_to_the_same_weights() -> None:
    """They differ by what is under way."""

    def work(comm: Comm) -> list[Tensor]:
        with set_up(comm, "update-average(relay(chain, missing=initial))", optimizer=plain_sgd) as run:
            train(run, range(3))
            found = [weights(run.model)]
            for _ in range(comm.size):
                run.replica.optimizer.zero_grad()
                run.step()
            return [*found, weights(run.model)]

    results = on_threads(5, work)
    for before, after in results[1:]:
        assert not torch.allclose(before, results[0][0], rtol=1e-6)
        torch.testing.assert_close(after, results[0][1], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_messages_under_way_are_part_of_the_state(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    algorithm = "update-average(relay(double-binary-tree, missing=initial), bucket=0)"

    def uninterrupted(comm: Comm) -> tuple[Tensor, bytes]:
        with set_up(comm, algorithm, optimizer=optimizer) as run:
            train(run, range(3))
            torch.save(run.state_dict(), file := io.BytesIO())
            train(run, range(3, 7))
            return weights(run.model), file.getvalue()

    def go_on(comm: Comm) -> Tensor:
        with set_up(comm, algorithm, small_model(seed=9), optimizer) as run:
            run.load_state_dict(torch.load(io.BytesIO(results[comm.rank][1]), weights_only=True))
            train(run, range(3, 7))
            return weights(run.model)

    results = on_threads(5, uninterrupted)
    for found, (expected, _) in zip(on_threads(5, go_on), results, strict=True):
        assert torch.equal(found, expected)


# --- an exact mean ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "unequal"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("size", SIZES)
def test_with_an_exact_mean_it_is_model_averaging(size: int, optimizer: str, equal: bool) -> None:
    expected = averaged_models(size, "weighted-mean", equal, optimizer)
    found = on_threads(size, lambda comm: follow(comm, "update-average(bucket=48B)", equal, optimizer))
    for matrices in found:
        np.testing.assert_allclose(matrices, expected, rtol=1e-11, atol=1e-13)
        assert np.array_equal(matrices, found[0]), "all workers hold the same weights, bit by bit"


def plain_sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def update_of(worker: int) -> Tensor:
    model = small_model()
    return weights(train_alone(model, plain_sgd(model), [batch_of(worker, 0)])) - weights(small_model())


def one_step(comm: Comm, algorithm: str, idle: int | None = None) -> Tensor:
    with set_up(comm, algorithm, optimizer=plain_sgd) as run:
        if comm.rank != idle:
            loss_of(run.model, batch_of(comm.rank, 0)).backward()
        run.step()
        return weights(run.model)


def test_a_sum_adds_all_updates_up() -> None:
    expected = weights(small_model()) + sum(update_of(worker) for worker in range(3))
    for found in on_threads(3, lambda comm: one_step(comm, "update-average(all-reduce(ring, sum))")):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("algorithm", ["update-average", "update-average(relay(chain, missing=initial))"])
def test_a_worker_without_a_backward_takes_part_with_nothing(algorithm: str) -> None:
    """In the middle of the chain, so that its neighbours do not hear of each other yet."""
    share = [update_of(0) / 3, update_of(2) / 3]
    arrived = [[1, 0], [1, 1], [0, 1]] if "relay" in algorithm else [[1, 1]] * 3
    for (first, last), found in zip(arrived, on_threads(3, lambda c: one_step(c, algorithm, idle=1)), strict=True):
        expected = weights(small_model()) + first * share[0] + last * share[1]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_with_a_scaler_a_worker_that_overflows_takes_part_with_nothing() -> None:
    def work(comm: Comm) -> tuple[Tensor, float]:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with set_up(comm, "update-average(bucket=0)", optimizer=plain_sgd) as run:
            factor = float("inf") if comm.rank == 1 else 1.0
            scaler.scale(loss_of(run.model, batch_of(comm.rank, 0)) * factor).backward()
            run.step(scaler)
            scaler.update()
            return weights(run.model), scaler.get_scale()

    expected = weights(small_model()) + (update_of(0) + update_of(2)) / 3
    results = on_threads(3, work)
    for found, _ in results:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert [scale for _, scale in results] == [1024.0, 512.0, 1024.0]


def test_what_nobody_uses_keeps_its_value() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, "update-average", Quadratic()) as run:
            for _ in range(5):
                run.replica.optimizer.zero_grad()
                run.model.first.square().sum().backward()
                run.step()
            return run.model.second.detach().clone()

    for found in on_threads(3, work):
        assert torch.equal(found, Quadratic().second)


# --- what it hands over ----------------------------------------------------------------------------------------------


@dataclass
class Recorder(Exchange):
    notes: list[tuple[str, Tensor]] = field(default_factory=list)

    def begin(self, buffer: Tensor) -> None:
        self.notes.append((self.tag, buffer.clone()))

    def scale(self, samples: float) -> float:
        return samples

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        self.notes.append((self.tag, buffer[: self.layout.numel] / samples))


def test_the_exchange_begins_with_zeros_and_is_handed_scaled_updates() -> None:
    recorder = Recorder()
    with set_up(World(1).comm(0), UpdateAverage(recorder, bucket=4 * 2**20), optimizer=plain_sgd) as run:
        (bucket,) = run.replica.buckets
        before = bucket.weights.clone()
        run.samples = 4
        train(run, range(1))
        (_, begun), (tag, update) = recorder.notes[-2:]
        torch.testing.assert_close(bucket.weights, before + 4 * update)
    assert tag == "weights/0"
    assert torch.equal(begun, torch.zeros_like(before))
    expected = torch.cat([update_of(0)[-2:], update_of(0)[-10:-2]])  # the last layer's bias, then its matrix
    torch.testing.assert_close(update[[0, 1, *range(8, 16)]], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("exchange", "equal", "buffers"),
    [("all-reduce", True, "average"), ("relay", False, "local"), ("gossip", False, "local")],
)
def test_its_traits_are_those_of_the_exchange(exchange: str, equal: bool, buffers: str) -> None:
    algorithm = parse(f"update-average({exchange})", Algorithm)
    assert (algorithm.equal, algorithm.buffers) == (equal, buffers)


@pytest.mark.parametrize("exchange", ["all-reduce", "relay"])
def test_buffers_are_averaged_only_where_workers_are_equal(exchange: str) -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, f"update-average({exchange})", normed_model()) as run:
            train(run, range(2))
            return run.model[1].running_mean.clone()

    first, second = on_threads(2, work)
    assert torch.equal(first, second) == (exchange == "all-reduce")
