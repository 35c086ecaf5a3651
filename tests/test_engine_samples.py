"""`run.samples`: what a worker's batch weighs, and a worker that has none."""

from __future__ import annotations

import math

import pytest
import torch
from join_targets import share, train_shares, train_shares_everywhere
from launching import ignore, options
from torch import Tensor
from training import Batch, batch_of, loss_of, momentum, set_up, small_model, train, train_alone, weights
from workers import on_threads

from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.launch import launch

STEPS = 4
GRADIENTS = ["ddp", "gradient-average(all-reduce(all-gather))", "gradient-average(update=bucket)"]
EQUAL = [
    *GRADIENTS,
    "gradient-average(update=bucket, wait=forward)",
    "allreduce-model",
    "model-average(all-reduce(all-gather))",
    "model-average(update=bucket)",
    "update-average",
    "gradient-average(all-reduce(ring, mean))",
    "gradient-average(all-reduce(all-gather, mean))",
    "gradient-average(all-reduce(all-gather, median))",
    "gradient-average(all-reduce(ring, sum))",
]
APART = ["d-psgd", "relay-sgd", "model-average(gossip(ring), order=combine-first)", "d2", "gradient-tracking"]


def joint(size: int, step: int) -> Batch:
    parts = [batch_of(rank, step, samples=share(rank, step)) for rank in range(size)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("algorithm", GRADIENTS)
def test_workers_without_a_batch_weigh_nothing_in_the_gradient(algorithm: str, size: int) -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, algorithm) as run:
            train_shares(run)
            return weights(run.model)

    plain = small_model()
    train_alone(plain, momentum(plain), [joint(size, step) for step in range(STEPS)])
    first, *others = on_threads(size, work)
    torch.testing.assert_close(first, weights(plain), rtol=1e-11, atol=1e-13)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("algorithm", ["allreduce-model", "model-average(update=bucket)"])
def test_workers_without_a_batch_weigh_nothing_in_the_model(algorithm: str, size: int) -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, algorithm, optimizer=sgd) as run:
            train_shares(run)
            return weights(run.model)

    plain = small_model()
    train_alone(plain, sgd(plain), [joint(size, step) for step in range(STEPS)])
    for found in on_threads(size, work):
        torch.testing.assert_close(found, weights(plain), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("algorithm", [*EQUAL, *APART])
def test_a_worker_without_a_batch_spoils_nothing(algorithm: str) -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, algorithm) as run:
            train_shares(run)
            run.algorithm.drain()
            return weights(run.model)

    found = on_threads(3, work)
    assert all(each.isfinite().all() for each in found)
    if algorithm in EQUAL:
        assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("algorithm", EQUAL)
def test_where_no_worker_has_a_batch_weights_stay(algorithm: str, size: int) -> None:
    def work(comm: Comm) -> tuple[Tensor, Tensor, Tensor]:
        with set_up(comm, algorithm) as run:
            train(run, range(2))
            run.algorithm.drain()
            before = weights(run.model)
            run.samples = 0
            train(run, range(2, 4))
            run.step()
            run.algorithm.drain()
            without = weights(run.model)
            run.samples = 1
            train(run, range(4, 5))
            run.algorithm.drain()
            return before, without, weights(run.model)

    for before, without, after in on_threads(size, work):
        assert torch.equal(before, without)
        assert after.isfinite().all()
        assert not torch.equal(without, after)


def test_samples_are_those_at_the_beginning_of_backward() -> None:
    """Whatever the algorithm exchanges, and when."""

    def work(comm: Comm, algorithm: str) -> Tensor:
        with set_up(comm, algorithm, optimizer=sgd) as run:
            for step in range(2):
                run.replica.optimizer.zero_grad()
                run.samples = 1 + comm.rank
                loss_of(run.model, batch_of(comm.rank, step)).backward()
                run.samples = math.pi  # of the next step
                run.step()
            return weights(run.model)

    of_gradients = on_threads(2, lambda comm: work(comm, "ddp"))[0]
    of_models = on_threads(2, lambda comm: work(comm, "allreduce-model"))[0]
    torch.testing.assert_close(of_gradients, of_models, rtol=1e-12, atol=1e-14)


# --- processes, and what is refused ----------------------------------------------------------------------------------


def test_processes_end_as_threads_do() -> None:
    found = launch(train_shares_everywhere, ("ddp",), options(3), ignore)
    assert found == on_threads(3, lambda comm: train_shares_everywhere(comm, ignore, "ddp"))[0]


def test_torch_ddp_cannot_leave_a_worker_out() -> None:
    with pytest.raises(UserError, match=r"^'torch-ddp' counts every worker alike, also one without samples; use ddp$"):
        launch(train_shares_everywhere, ("torch-ddp",), options(3), ignore)


def test_a_scaler_without_a_gradient_gets_a_sentence() -> None:
    with set_up(World(1).comm(0), "allreduce-model") as run:
        run.samples = 0
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(run.model, batch_of(0, 0))).backward()
        with pytest.raises(UserError, match=r"^a GradScaler needs a gradient in every step, and this worker has none"):
            run.step(scaler)
