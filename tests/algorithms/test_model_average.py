"""Every worker steps alone and all agree on the weights: beside its formula, and beside gradient averaging.

The oracle keeps n models and n optimizers in numpy, in float64, each written out as its authors do, and puts the
combination of all models in the place of each after every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from bucket_updates import Recorder
from contracts.test_algorithms import COMBINATIONS, ROUTES, Array, data, gradient, linear, oracle, shares, start
from fake_clock import FakeClock
from torch import Tensor, nn
from torch.nn import functional
from training import (
    adam,
    batch_of,
    distribute,
    loss_of,
    momentum,
    normed_model,
    set_up,
    small_model,
    train,
    train_alone,
    weights,
)
from workers import SIZES, on_threads

from tutti.algorithms.model_average import ModelAverage
from tutti.collectives.base import Collective
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.exchanges.base import Exchange
from tutti.hooks import Hook
from tutti.launch import LaunchOptions, launch
from tutti.spec import parse
from tutti.train import Plan
from tutti.train import train as train_task

# --- the oracle ------------------------------------------------------------------------------------------------------


@dataclass
class Sgd:
    """v <- m v + (g + d x);  x <- x - lr v"""

    lr: float = 0.05
    momentum: float = 0.0
    decay: float = 0.0
    velocity: Array | float = 0.0

    def step(self, matrix: Array, grad: Array) -> Array:
        self.velocity = self.momentum * self.velocity + (grad + self.decay * matrix)
        return matrix - self.lr * self.velocity

    def ours(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), self.lr, self.momentum, weight_decay=self.decay)


@dataclass
class Adam:
    """Algorithm 1 of Kingma and Ba."""

    lr: float = 0.01
    steps: int = 0
    first: Array | float = 0.0
    second: Array | float = 0.0

    def step(self, matrix: Array, grad: Array) -> Array:
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * grad
        self.second = 0.999 * self.second + 0.001 * grad**2
        first, second = self.first / (1 - 0.9**self.steps), self.second / (1 - 0.999**self.steps)
        return matrix - self.lr * first / (np.sqrt(second) + 1e-8)

    def ours(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), self.lr)


OPTIMIZERS: dict[str, Callable[[], Sgd | Adam]] = {
    "sgd": Sgd,
    "momentum": lambda: Sgd(momentum=0.9, decay=0.02),
    "adam": Adam,
}


def averaged_models(size: int, combine: str, equal: bool, optimizer: str) -> list[Array]:
    """The matrix that all agree on, after every step."""
    models, optimizers, agreed = [start()] * size, [OPTIMIZERS[optimizer]() for _ in range(size)], []
    for step, samples in enumerate(shares(size, equal)):
        for worker, count in enumerate(samples):
            grad = gradient(models[worker], *data(worker, step, count))
            models[worker] = optimizers[worker].step(models[worker], grad)
        models = [COMBINATIONS[combine](models, samples)] * size
        agreed.append(models[0])
    return agreed


def follow(comm: Comm, algorithm: str, equal: bool, optimizer: str) -> list[Array]:
    """The matrix after every step, as this worker has it."""
    matrices = []
    with set_up(comm, algorithm, linear(), OPTIMIZERS[optimizer]().ours) as run:
        for step, samples in enumerate(shares(comm.size, equal)):
            inputs, targets = (torch.from_numpy(a) for a in data(comm.rank, step, samples[comm.rank]))
            run.samples = samples[comm.rank]
            run.replica.optimizer.zero_grad()
            functional.mse_loss(run.model(inputs), targets).backward()
            run.step()
            stacked = torch.vstack([run.model.weight.detach().t(), run.model.bias.detach()])
            matrices.append(stacked.numpy().copy())
    return matrices


def check(size: int, exchange: str, expected: list[Array], equal: bool, optimizer: str, strict: bool = False) -> None:
    algorithm = f"model-average({exchange}, bucket=48B)"
    found = on_threads(size, lambda comm: follow(comm, algorithm, equal, optimizer), strict=strict)
    for matrices in found:
        np.testing.assert_allclose(matrices, expected, rtol=1e-11, atol=1e-13)
        assert np.array_equal(matrices, found[0]), "all workers hold the same weights, bit by bit"


def in_turn() -> list[tuple[int, str, str, bool]]:
    """Every route with every combination at every size; on strict wires every other time."""
    cases = product(enumerate(SIZES), enumerate(ROUTES), enumerate(COMBINATIONS))
    return [(size, route, combine, (s + r + c) % 2 == 1) for (s, size), (r, route), (c, combine) in cases]


@pytest.mark.parametrize(("size", "route", "combine", "strict"), in_turn())
def test_the_formula_on_every_route(size: int, route: str, combine: str, strict: bool) -> None:
    expected = averaged_models(size, combine, equal=False, optimizer="momentum")
    check(size, f"all-reduce({route}, {combine})", expected, equal=False, optimizer="momentum", strict=strict)


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "unequal"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("size", SIZES)
def test_the_formula_with_every_optimizer(size: int, combine: str, optimizer: str, equal: bool) -> None:
    expected = averaged_models(size, combine, equal, optimizer)
    check(size, f"all-reduce(ring, {combine})", expected, equal, optimizer)


def test_a_sum_multiplies_the_model_by_the_number_of_workers() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, "model-average(all-reduce(ring, sum))") as run:
            for _ in range(3):
                run.step()
            return weights(run.model)

    for found in on_threads(4, work):
        assert torch.equal(found, 4**3 * weights(small_model()))


# --- beside gradient averaging and ordinary training -----------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_with_momentum_and_equal_shares_it_is_gradient_averaging(size: int) -> None:
    """Whose own oracle, with the same optimizer, is that of contracts/test_algorithms.py."""
    check(size, "all-reduce", oracle(size, "weighted-mean", equal=True), equal=True, optimizer="momentum")


def gradient_averaging(size: int, equal: bool, optimizer: str) -> list[Array]:
    matrices = on_threads(size, lambda comm: follow(comm, "gradient-average", equal, optimizer))
    return matrices[0]


@pytest.mark.parametrize(
    ("optimizer", "equal", "same"),
    [("sgd", True, True), ("sgd", False, True), ("momentum", False, False), ("adam", True, False)],
)
def test_where_it_is_gradient_averaging_and_where_not(optimizer: str, equal: bool, same: bool) -> None:
    one, other = averaged_models(3, "weighted-mean", equal, optimizer), gradient_averaging(3, equal, optimizer)
    assert np.allclose(one, other, rtol=1e-11, atol=1e-13) == same
    assert np.allclose(one[-1], other[-1], rtol=1e-4) == same, "what differs is no matter of rounding"


@pytest.mark.parametrize("bucket", ["0", "4MiB"])
@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_alone_it_is_ordinary_training_to_the_bit(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer], bucket: str
) -> None:
    plain = small_model()
    train_alone(plain, optimizer(plain), [batch_of(0, step) for step in range(4)])
    with set_up(World(1).comm(0), f"model-average(bucket={bucket})", optimizer=optimizer) as run:
        train(run, range(4))
        assert torch.equal(weights(run.model), weights(plain))


def test_gradients_of_several_backwards_add_up_at_each_worker() -> None:
    def work(comm: Comm, algorithm: str) -> Tensor:
        with set_up(comm, algorithm) as run:
            for step in range(3):
                run.replica.optimizer.zero_grad()
                with run.accumulate():
                    loss_of(run.model, batch_of(comm.rank, 10 * step)).backward()
                loss_of(run.model, batch_of(comm.rank, 10 * step + 1)).backward()
                run.step()
            return weights(run.model)

    ours, theirs = (on_threads(3, lambda comm, name=name: work(comm, name)) for name in ("model-average", "ddp"))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


# --- who has no gradient ---------------------------------------------------------------------------------------------


def plain_sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def stepped(worker: int) -> Tensor:
    """The weights of this worker after a step of its own."""
    return weights(train_alone(model := small_model(), plain_sgd(model), [batch_of(worker, 0)]))


def test_a_worker_without_a_backward_takes_part_with_its_weights_as_they_are() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, "model-average", optimizer=plain_sgd) as run:
            run.samples = 1 + comm.rank
            if comm.rank != 1:
                loss_of(run.model, batch_of(comm.rank, 0)).backward()
            run.step()
            return weights(run.model)

    expected = (1 * stepped(0) + 2 * weights(small_model()) + 3 * stepped(2)) / 6
    for found in on_threads(3, work):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


class Heads(nn.Module):
    """Worker 0 uses one head, all others another, nobody the third."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.used = min(rank, 1)
        self.heads = nn.ParameterList(torch.randn(40, generator=torch.Generator().manual_seed(i)) for i in range(3))

    def forward(self) -> Tensor:
        return self.heads[self.used].square().sum()


@pytest.mark.parametrize("size", SIZES)
def test_what_nobody_uses_keeps_its_value_up_to_rounding(size: int) -> None:
    """However many steps; what some use is averaged with the others' unchanged values."""

    def work(comm: Comm) -> list[Tensor]:
        with set_up(comm, "model-average", Heads(comm.rank), plain_sgd) as run:
            for step in range(100):
                run.replica.optimizer.zero_grad()
                run.model().backward()
                run.step()
                if step == 0:
                    first = run.model.heads[0].detach().clone()
            return [first, run.model.heads[2].detach().clone()]

    before, results = Heads(0), on_threads(size, work)
    for used, unused in results:
        torch.testing.assert_close(used, before.heads[0].detach() * (1 - 0.2 / size))
        moved = (unused - before.heads[2].detach()).abs() / (unused.abs() * torch.finfo(unused.dtype).eps)
        assert moved.max() <= (0 if size <= 2 else 2.5)
        assert torch.equal(unused, results[0][1])


def test_buffers_are_averaged() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, "model-average", normed_model()) as run:
            train(run, range(1))
            return run.model[1].running_mean.clone()

    def alone(worker: int) -> Tensor:
        model = normed_model()
        model(batch_of(worker, 0)[0])
        return model[1].running_mean

    expected = torch.stack([alone(worker) for worker in range(3)]).mean(0)
    for found in on_threads(3, work):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


# --- steps of other kinds --------------------------------------------------------------------------------------------


def test_with_a_scaler_a_worker_that_overflows_takes_part_with_its_weights_as_they_are() -> None:
    def work(comm: Comm) -> tuple[Tensor, float]:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with set_up(comm, "model-average(bucket=0)", optimizer=plain_sgd) as run:
            factor = float("inf") if comm.rank == 1 else 1.0
            scaler.scale(loss_of(run.model, batch_of(comm.rank, 0)) * factor).backward()
            run.step(scaler)
            scaler.update()
            return weights(run.model), scaler.get_scale()

    expected = (stepped(0) + weights(small_model()) + stepped(2)) / 3
    results = on_threads(3, work)
    for found, _ in results:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert [scale for _, scale in results] == [1024.0, 512.0, 1024.0]


class FromElsewhere(torch.optim.SGD):
    """Keeps something in its groups, as some optimizers do; torch's own do not."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        super().step(closure)


def test_an_optimizer_from_elsewhere_steps_once_on_everything() -> None:
    plain = small_model()
    train_alone(plain, plain_sgd(plain), [batch_of(0, step) for step in range(3)])
    model = small_model()
    optimizer = FromElsewhere(model.parameters(), lr=0.1)
    with distribute(model, optimizer, "model-average(bucket=0)", comm=World(1).comm(0)) as run:
        train(run, range(3))
        assert optimizer.param_groups[0]["count"] == 3
        assert torch.equal(weights(run.model), weights(plain))


# --- when and where --------------------------------------------------------------------------------------------------


def test_weights_are_exchanged_on_the_lane_with_step_and_samples() -> None:
    recorder = Recorder()
    with set_up(World(1).comm(0), ModelAverage(recorder, bucket=0)) as run:
        for step in range(2):
            run.samples = 5 + step
            train(run, range(1))
    assert recorder.notes == [(f"weights/{i}", True, step, 5.0 + step) for step in range(2) for i in range(4)]


def test_a_bucket_is_exchanged_while_the_next_one_steps() -> None:
    recorder, seen = Recorder(), []
    with set_up(World(1).comm(0), ModelAverage(recorder, bucket=0)) as run:

        def look(*_: Any) -> None:
            seen.append(recorder.began.wait(20) if seen else recorder.began.is_set())

        run.replica.optimizer.register_step_pre_hook(Hook(look))
        train(run, range(1))
    assert seen == [False, True, True, True]


@dataclass
class Slow(Exchange):
    """Takes time on a clock that only it moves: 5 while the next bucket is about to step, 2 while the run waits."""

    worked: threading.Event = field(default_factory=threading.Event)
    awaited: threading.Event = field(default_factory=threading.Event)

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        if self.tag == "weights/0":
            self.comm.clock.sleep(5.0)
            self.worked.set()
            assert self.awaited.wait(20)
            self.comm.clock.sleep(2.0)


class Watched(ModelAverage):
    def finish(self) -> None:
        if self._pending:
            self.exchange.awaited.set()  # type: ignore[attr-defined]
        super().finish()


def test_what_the_step_waits_for_is_exposed_and_the_rest_is_hidden() -> None:
    clock: Any = FakeClock()
    slow, steps = Slow(), iter(range(4))

    def wait_from_the_second_on(*_: Any) -> None:
        assert next(steps) == 0 or slow.worked.wait(20)

    with set_up(World(1, clock=clock).comm(0), Watched(slow, bucket=0)) as run:
        run.replica.optimizer.register_step_pre_hook(Hook(wait_from_the_second_on))
        train(run, range(1))
        assert run.take_times() == (5.0, 2.0)
        assert run.take_times() == (0.0, 0.0)


def test_every_exchange_gets_its_own_state_back() -> None:
    recorder = Recorder()
    with set_up(World(1).comm(0), ModelAverage(recorder, bucket=0)) as run:
        state = run.state_dict()
        assert state["algorithm"]["exchanges"] == [{"of": f"weights/{index}"} for index in range(4)]
        run.load_state_dict(state)
    assert recorder.notes == [("loaded", f"weights/{index}") for index in range(4)]


class Broken(Recorder):
    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        super().agree(buffer, step, samples)
        if len(self.notes) == 2:
            raise KeyError("the exchange's own error")


def test_an_error_in_the_exchange_comes_out_of_the_step() -> None:
    with set_up(World(1).comm(0), ModelAverage(Broken(), bucket=0)) as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        with pytest.raises(KeyError, match="the exchange's own error"):
            run.step()
        train(run, range(1))


# --- bytes, and real processes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("size", SIZES)
def test_the_bytes_are_the_routes_for_the_weights_and_their_spare_elements(size: int, route: str) -> None:
    def work(comm: Comm) -> tuple[float, float]:
        with set_up(comm, f"model-average(all-reduce({route}), bucket=32B)") as run:
            begun = run.meter.sent("weights")
            train(run, range(3))
            assert [bucket.layout.total for bucket in run.replica.buckets] == buckets
            return run.meter.sent("weights") - begun, run.meter.sent("gradients")

    # 2.bias at 0 and 2.weight at 8; 0.bias; 0.weight: elements of 8 bytes, a flag for each and a weight
    buckets = [8 + 8 + 2 + 1, 4 + 1 + 1, 12 + 1 + 1]
    expected = 3 * sum(parse(route, Collective).cost(size, 8 * total).total for total in buckets)
    sent = on_threads(size, work)
    assert sum(weighing for weighing, _ in sent) == pytest.approx(expected)
    assert [other for _, other in sent] == [0] * size


def test_over_real_processes_it_trains_as_one_worker_does() -> None:
    plan = Plan(steps=6, global_batch=32)

    def run(spec: str, workers: int, engine: str) -> list[dict[str, Any]]:
        place = LaunchOptions(workers, engine=engine, preload=("sklearn.datasets",))
        rows: list[dict[str, Any]] = launch(train_task, (spec, plan), place, lambda _: None)
        return rows

    (alone,) = run("single", 1, "threads")
    for row in run("allreduce-model", 2, "processes"):
        assert row["evaluations"][-1]["loss"] == pytest.approx(alone["evaluations"][-1]["loss"], rel=1e-4)
        assert row["bytes_per_step"] == 4 * (61706 + 44 + 10 + 1)
        assert row["bytes_source"] == "metered"
        assert all(0 < exposed <= total for exposed, total in zip(row["exposed"], row["seconds"], strict=True))
