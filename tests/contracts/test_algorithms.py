"""What every algorithm promises: each member found in the folder, and each preset, over every route.

The oracle knows nothing of the package: numpy in float64, least squares with gradients written out by hand, and SGD
with momentum and weight decay as in the textbook. It is compared with every worker after every step.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from training import adam, distribute, momentum, set_up, small_model, train, train_alone, weights
from workers import SIZES, on_threads

from tutti.algorithms.base import Algorithm
from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm
from tutti.errors import UserError
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
]
GRADIENT_PRESETS = [name for name in PRESETS if isinstance(parse(name, Algorithm), GradientAverage)]


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


def oracle(size: int, combine: str, equal: bool) -> list[Array]:
    """The matrix after every step."""
    matrix, velocity, matrices = start(), np.zeros((INPUTS + 1, OUTPUTS)), []
    for step, samples in enumerate(shares(size, equal)):
        each = [gradient(matrix, *data(worker, step, count)) for worker, count in enumerate(samples)]
        velocity = MOMENTUM * velocity + COMBINATIONS[combine](each, samples) + DECAY * matrix
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


def textbook(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)


def follow(comm: Comm, algorithm: str | Algorithm, equal: bool) -> list[Array]:
    """The matrix after every step, as this worker has it."""
    matrices = []
    with set_up(comm, algorithm, linear(), textbook) as run:
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


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "unequal"])
@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("size", SIZES)
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


@pytest.mark.parametrize("algorithm", [*ANYWHERE, *PRESETS])
def test_alone_it_is_ordinary_training(algorithm: str) -> None:
    (matrices,) = on_threads(1, lambda comm: follow(comm, algorithm, equal=True))
    np.testing.assert_allclose(matrices, oracle(1, "mean", equal=True), rtol=1e-12)


def test_one_object_may_serve_all_workers() -> None:
    """The dataclass is a configuration: what a run makes of it is its own."""
    shared = parse("ddp(bucket=48B)", Algorithm)
    expected = oracle(3, "weighted-mean", equal=False)
    for matrices in on_threads(3, lambda comm: follow(comm, shared, equal=False)):
        np.testing.assert_allclose(matrices, expected, rtol=1e-11)
    assert str(shared) == "gradient-average(all-reduce(ring), bucket=48B)"


# --- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("algorithm", [*ANYWHERE, *PRESETS, *VARIANTS])
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


@pytest.mark.parametrize("algorithm", [*ANYWHERE, *PRESETS, *VARIANTS])
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


@pytest.mark.parametrize("algorithm", [*ANYWHERE, *PRESETS, *VARIANTS])
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
