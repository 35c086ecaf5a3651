"""What every algorithm promises: each member found in the folder, and each preset, over every route.

The oracle knows nothing of the package: numpy in float64, least squares with gradients written out by hand, and SGD
with momentum and weight decay as in the textbook. It is compared with every worker after every step. Where workers
hold different weights (`equal` is False) each member's own test has its oracle, and here is what all have in common.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decentralised_oracle import follow_all, follow_several, make_quadratics, sgd
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

from tutti.algorithms.base import Algorithm
from tutti.algorithms.gradient_average import GradientAverage
from tutti.algorithms.quasi_global import QuasiGlobal
from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.launch import LaunchOptions, launch
from tutti.presets import PRESETS
from tutti.spec import member, names, parse

Array = np.ndarray[Any, np.dtype[np.float64]]

STEPS, INPUTS, OUTPUTS = 4, 3, 2
LR, MOMENTUM, DECAY = 0.05, 0.9, 0.02
WAYS = ("all-reduce", "reduce-broadcast", "all-gather", "gather-scatter")
ROUTES = [name for name in names("collectives") if name != "native"] + [f"native({way})" for way in WAYS]

ALGORITHMS = {name: member(Algorithm, name) for name in names("algorithms")}
ANYWHERE = [name for name, cls in ALGORITHMS.items() if not cls.one_worker and not cls.needs_process_group]
VARIANTS = [
    "gradient-average(all-reduce(star, mean), bucket=80B)",
    "gradient-average(update=bucket)",
    "gradient-average(bucket=80B, update=bucket, wait=forward)",
    "gradient-average(bucket=auto, update=bucket, wait=forward)",
    "d2(gossip(chain, rule=lazy), bucket=80B)",
    "gradient-tracking(gossip(one-peer-exponential), bucket=80B)",
    "quasi-global(relay(chain, missing=initial), bucket=80B)",
]
EVERYTHING = [*ANYWHERE, *PRESETS, *VARIANTS]
UNEQUAL = [spec for spec in EVERYTHING if not parse(spec, Algorithm).equal]
GRADIENT_PRESETS = [name for name in PRESETS if isinstance(parse(name, Algorithm), GradientAverage)]


def has_own_momentum(spec: str) -> bool:
    """It takes the place of SGD's, is something else on one worker too, and there is none for other optimizers."""
    return isinstance(parse(spec, Algorithm), QuasiGlobal)


# --- the oracle ------------------------------------------------------------------------------------------------------

# what n workers with gradients g_i of s_i samples each step with
COMBINATIONS: dict[str, Callable[[list[Array], list[int]], Array]] = {
    "mean": lambda g, _: sum(g) / len(g),
    "sum": lambda g, _: sum(g),
    "weighted-mean": lambda g, s: sum(s_i * g_i for s_i, g_i in zip(s, g, strict=True)) / sum(s),
}


def shares(size: int, equal: bool) -> list[list[int]]:
    """Samples per step and worker."""
    return [[4 if equal else 1 + (3 * worker + step) % 5 for worker in range(size)] for step in range(STEPS)]


def data(worker: int, step: int, samples: int) -> tuple[Array, Array]:
    drawn = np.random.default_rng((worker, step, samples))
    return drawn.normal(size=(samples, INPUTS)), drawn.normal(size=(samples, OUTPUTS))


def start() -> Array:
    """Matrix and bias in one: x W + b = [x 1] M."""
    return np.random.default_rng(0).normal(size=(INPUTS + 1, OUTPUTS))


def gradient(matrix: Array, inputs: Array, targets: Array) -> Array:
    """Of the mean over all elements of ([x 1] M - y)^2."""
    extended = np.hstack([inputs, np.ones((len(inputs), 1))])
    return 2 / targets.size * extended.T @ (extended @ matrix - targets)


def oracle(size: int, combine: str, equal: bool, momentum: float = MOMENTUM) -> list[Array]:
    """The matrix after every step."""
    matrix, velocity, matrices = start(), np.zeros((INPUTS + 1, OUTPUTS)), []
    for step, samples in enumerate(shares(size, equal)):
        each = [gradient(matrix, *data(worker, step, count)) for worker, count in enumerate(samples)]
        velocity = momentum * velocity + COMBINATIONS[combine](each, samples) + DECAY * matrix
        matrix = matrix - LR * velocity
        matrices.append(matrix)
    return matrices


@pytest.mark.parametrize("size", SIZES)
def test_the_oracle_itself(size: int) -> None:
    """The weighted mean of shares is the gradient of the whole batch, which finite differences confirm."""
    samples = shares(size, equal=False)[1]
    parts = [data(worker, 1, count) for worker, count in enumerate(samples)]
    inputs, targets = np.vstack([x for x, _ in parts]), np.vstack([y for _, y in parts])
    whole = gradient(start(), inputs, targets)
    np.testing.assert_allclose(COMBINATIONS["weighted-mean"]([gradient(start(), *p) for p in parts], samples), whole)

    def loss(matrix: Array) -> float:
        return float(np.mean((inputs @ matrix[:-1] + matrix[-1] - targets) ** 2))

    nudge = np.zeros_like(whole)
    nudge[1, 1] = 1e-6
    assert (loss(start() + nudge) - loss(start() - nudge)) / 2e-6 == pytest.approx(whole[1, 1], rel=1e-6)


# --- the package beside it -------------------------------------------------------------------------------------------


def linear() -> nn.Linear:
    model = nn.Linear(INPUTS, OUTPUTS, dtype=torch.float64)
    matrix = torch.from_numpy(start())
    with torch.no_grad():
        model.weight.copy_(matrix[:-1].t())
        model.bias.copy_(matrix[-1])
    return model


def textbook(model: nn.Module, momentum: float = MOMENTUM) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum, weight_decay=DECAY)


def follow(comm: Comm, algorithm: str | Algorithm, equal: bool, momentum: float = MOMENTUM) -> list[Array]:
    """The matrix after every step, as this worker has it."""
    matrices = []
    with set_up(comm, algorithm, linear(), lambda model: textbook(model, momentum)) as run:
        for step, samples in enumerate(shares(comm.size, equal)):
            inputs, targets = (torch.from_numpy(a) for a in data(comm.rank, step, samples[comm.rank]))
            run.samples = samples[comm.rank]
            run.replica.optimizer.zero_grad()
            functional.mse_loss(run.model(inputs), targets).backward()
            run.step()
            run.algorithm.drain()
            parameters = dict(run.replica.model.named_parameters())
            stacked = torch.vstack([parameters["weight"].detach().t(), parameters["bias"].detach()])
            matrices.append(stacked.numpy().copy())
    return matrices


def check(size: int, algorithm: str, combine: str, equal: bool, strict: bool = False) -> None:
    expected = oracle(size, combine, equal)
    found = on_threads(size, lambda comm: follow(comm, algorithm, equal), strict=strict)
    for matrices in found:
        np.testing.assert_allclose(matrices, expected, rtol=1e-11, atol=1e-13)
        assert np.array_equal(matrices, found[0]), "all workers hold the same weights, bit by bit"


def in_turn() -> list[tuple[int, str, str, bool, bool]]:
    """Every route with every combination at every size; equal shares and strict wires in turn, so that any two meet."""
    cases = product(enumerate(SIZES), enumerate(ROUTES), enumerate(COMBINATIONS))
    ways = list(product([True, False], [False, True]))
    return [(size, route, combine, *ways[(s + r + c) % 4]) for (s, size), (r, route), (c, combine) in cases]


@pytest.mark.parametrize(("size", "route", "combine", "equal", "strict"), in_turn())
def test_gradient_average(size: int, route: str, combine: str, equal: bool, strict: bool) -> None:
    check(size, f"gradient-average(all-reduce({route}, {combine}), bucket=48B)", combine, equal, strict)


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "unequal"])
@pytest.mark.parametrize("preset", GRADIENT_PRESETS)
@pytest.mark.parametrize("size", SIZES)
def test_presets_that_average_gradients(size: int, preset: str, equal: bool, strict: bool) -> None:
    """All of them by samples, so that they train as one worker on the whole batch would."""
    check(size, preset, "weighted-mean", equal, strict)


@pytest.mark.parametrize("bucket", ["0", "16B", "1KiB"])
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_neither_buckets_nor_overlap_change_the_result(bucket: str, overlap: str) -> None:
    check(3, f"gradient-average(bucket={bucket}, overlap={overlap})", "weighted-mean", equal=False)


@pytest.mark.parametrize("how", ["update=bucket", "update=bucket, wait=forward"])
@pytest.mark.parametrize("size", SIZES)
def test_when_the_weights_are_updated_does_not_change_the_result(size: int, how: str) -> None:
    check(size, f"gradient-average(bucket=48B, {how})", "weighted-mean", equal=False)


@pytest.mark.parametrize("name", [name for name, cls in ALGORITHMS.items() if cls.one_worker])
def test_what_runs_on_one_worker(name: str) -> None:
    check(1, name, "mean", equal=True)
    with pytest.raises(UserError, match=f"'{name}' runs on one worker and there are 2; use ddp"):
        on_threads(2, lambda comm: set_up(comm, name))


@pytest.mark.parametrize("name", [name for name, cls in ALGORITHMS.items() if cls.needs_process_group])
def test_what_needs_a_process_group_is_refused_on_threads(name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}' needs torch's process group, which threads do not have"):
        on_threads(2, lambda comm: set_up(comm, name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_an_oracle(name: str) -> None:
    """Here, or in its own test file."""
    own = Path(__file__).parent.parent / "algorithms" / f"test_{name.replace('-', '_')}.py"
    assert name == "gradient-average" or own.exists()


@pytest.mark.parametrize("algorithm", EVERYTHING)
def test_alone_it_is_ordinary_training(algorithm: str) -> None:
    momentum = 0.0 if has_own_momentum(algorithm) else MOMENTUM
    (matrices,) = on_threads(1, lambda comm: follow(comm, algorithm, equal=True, momentum=momentum))
    np.testing.assert_allclose(matrices, oracle(1, "mean", equal=True, momentum=momentum), rtol=1e-12)


@pytest.mark.parametrize("algorithm", EVERYTHING)
def test_its_text_reads_back(algorithm: str) -> None:
    found = parse(algorithm, Algorithm)
    assert parse(str(found), Algorithm) == found


# --- equal weights, or not -------------------------------------------------------------------------------------------


def distance(points: list[Tensor]) -> float:
    """How far workers are from their mean."""
    stacked = torch.stack(points)
    return float((stacked - stacked.mean(0)).norm())


@pytest.mark.parametrize("algorithm", EVERYTHING)
def test_weights_are_equal_where_it_says_so_and_else_kept_together(algorithm: str) -> None:
    def together(comm: Comm) -> Tensor:
        with set_up(comm, algorithm) as run:
            train(run, range(4))
            run.algorithm.drain()
            return weights(run.replica.model)

    def apart(worker: int) -> Tensor:
        model = small_model()
        return weights(train_alone(model, momentum(model), [batch_of(worker, step) for step in range(4)]))

    found = on_threads(5, together)
    if parse(algorithm, Algorithm).equal:
        assert all(torch.equal(each, found[0]) for each in found)
    else:
        assert distance(found) < 0.8 * distance([apart(worker) for worker in range(5)])


@pytest.mark.parametrize("algorithm", UNEQUAL)
def test_where_weights_differ_buffers_stay_each_workers_own(algorithm: str) -> None:
    """No all-reduce in a decentralised method."""
    assert parse(algorithm, Algorithm).buffers == "local"

    def work(comm: Comm) -> tuple[Tensor, float]:
        with set_up(comm, algorithm, normed_model()) as run:
            train(run, range(1))
            return run.model[1].running_mean.clone(), run.meter.sent("buffers")

    for worker, (found, sent) in enumerate(on_threads(3, work)):
        alone = normed_model()
        alone(batch_of(worker, 0)[0])
        assert torch.equal(found, alone[1].running_mean)
        assert sent == 0


def test_over_processes_it_is_the_same_as_on_threads() -> None:
    """Bit by bit, at every worker: all of them one after another, since starting processes takes the longest."""
    problem, optimizer = make_quadratics(3), sgd(0.1, momentum=0.5)
    found = launch(follow_several, (UNEQUAL, 3), LaunchOptions(3, engine="processes"), lambda _: None)
    for algorithm, points in zip(UNEQUAL, found.numpy(), strict=True):
        assert np.array_equal(points, follow_all(algorithm, problem, 3, optimizer)), algorithm


def train_with_a_gap(comm: Comm, algorithm: str, gap: str) -> Tensor:
    """Three steps; in the second one worker 1 has no backward ("nothing"), one that overflows, or no gap ("none")."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=gap == "overflow")
    with set_up(comm, algorithm) as run:
        for step in range(3):
            run.replica.optimizer.zero_grad()
            here = (comm.rank, step) == (1, 1)
            if not here or gap != "nothing":
                factor = float("inf") if here and gap == "overflow" else 1.0
                scaler.scale(loss_of(run.model, batch_of(comm.rank, step)) * factor).backward()
            run.step(scaler if scaler.is_enabled() else None)
            scaler.update()
        run.algorithm.drain()
        return weights(run.replica.model)


@pytest.mark.parametrize("algorithm", EVERYTHING)
def test_a_worker_without_a_backward_takes_part(algorithm: str) -> None:
    found = on_threads(3, lambda comm: train_with_a_gap(comm, algorithm, "nothing"))
    whole = on_threads(3, lambda comm: train_with_a_gap(comm, algorithm, "none"))
    for one, other in zip(found, whole, strict=True):
        assert one.isfinite().all()
        assert not torch.allclose(one, other), "what it lacks is missing everywhere two steps later"


@pytest.mark.parametrize("algorithm", UNEQUAL)
def test_a_worker_that_overflows_takes_part_as_one_without_a_backward(algorithm: str) -> None:
    overflown, without = (
        on_threads(3, lambda comm, gap=gap: train_with_a_gap(comm, algorithm, gap)) for gap in ("overflow", "nothing")
    )
    for one, other in zip(overflown, without, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_one_object_may_serve_all_workers() -> None:
    """The dataclass is a configuration: what a run makes of it is its own."""
    shared = parse("ddp(bucket=48B)", Algorithm)
    expected = oracle(3, "weighted-mean", equal=False)
    for matrices in on_threads(3, lambda comm: follow(comm, shared, equal=False)):
        np.testing.assert_allclose(matrices, expected, rtol=1e-11)
    assert str(shared) == "gradient-average(all-reduce(ring), bucket=48B)"


# --- going on --------------------------------------------------------------------------------------------------------


def with_optimizers(algorithms: list[str]) -> list[tuple[str, Callable[[nn.Module], torch.optim.Optimizer]]]:
    """Each with those that it can have."""
    return [(a, make) for a in algorithms for make in (momentum, adam) if make is momentum or not has_own_momentum(a)]


@pytest.mark.parametrize(("algorithm", "optimizer"), with_optimizers(EVERYTHING))
@pytest.mark.parametrize("size", [1, 3])
def test_a_saved_run_goes_on_bit_by_bit(
    algorithm: str, size: int, optimizer: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    def uninterrupted(comm: Comm) -> Tensor:
        with set_up(comm, algorithm, optimizer=optimizer) as run:
            train(run, range(6))
        return weights(run.replica.model)

    def save(comm: Comm) -> bytes:
        with set_up(comm, algorithm, optimizer=optimizer) as run:
            train(run, range(3))
            file = io.BytesIO()
            torch.save(run.state_dict(), file)
            return file.getvalue()

    def go_on(comm: Comm) -> Tensor:
        with set_up(comm, algorithm, small_model(seed=comm.rank + 5), optimizer) as run:
            run.load_state_dict(torch.load(io.BytesIO(files[comm.rank]), weights_only=True))
            train(run, range(3, 6))
            assert run.replica.steps == 6
        return weights(run.replica.model)

    files = on_threads(size, save)
    for found, expected in zip(on_threads(size, go_on), on_threads(size, uninterrupted), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("algorithm", EVERYTHING)
def test_asking_for_the_state_changes_nothing(algorithm: str) -> None:
    def work(comm: Comm, asking: bool) -> Tensor:
        with set_up(comm, algorithm) as run:
            for step in range(4):
                train(run, range(step, step + 1))
                if asking:
                    run.state_dict()
        return weights(run.replica.model)

    with_it, without = (on_threads(2, lambda comm, asking=asking: work(comm, asking)) for asking in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))


def leaves(state: Any) -> list[Any]:
    """All that a nested state holds, in order."""
    if isinstance(state, dict):
        return [leaf for key, value in state.items() for leaf in (key, *leaves(value))]
    if isinstance(state, list | tuple):
        return [leaf for value in state for leaf in leaves(value)]
    return [state.clone() if isinstance(state, Tensor) else state]


@pytest.mark.parametrize("algorithm", EVERYTHING)
def test_what_was_loaded_is_what_is_saved_again(algorithm: str) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm, algorithm) as run:
            train(run, range(3))
            state = copy.deepcopy(run.state_dict())
            train(run, range(3, 5))
            run.load_state_dict(state)
            for one, other in zip(leaves(run.state_dict()), leaves(state), strict=True):
                assert torch.equal(one, other) if isinstance(one, Tensor) else one == other

    on_threads(3, work)


@pytest.mark.parametrize("algorithm", EVERYTHING)
def test_after_close_the_model_and_the_optimizer_are_the_users_own(algorithm: str) -> None:
    def work(comm: Comm) -> None:
        model, plain = small_model(), small_model()
        optimizer = momentum(model)
        distribute(model, optimizer, algorithm, comm=comm).close()
        batches = [(torch.ones(2, 3, dtype=torch.float64) * comm.rank, torch.ones(2, 2, dtype=torch.float64))]
        train_alone(model, optimizer, batches * 2)
        train_alone(plain, momentum(plain), batches * 2)
        assert torch.equal(weights(model), weights(plain))

    on_threads(2, work)
