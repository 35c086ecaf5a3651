"""`run.join()`: workers with different numbers of batches, held against one worker on what the others see together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from join_targets import (
    COUNTS,
    batches_of,
    joint_batches,
    leave_the_block,
    state_of,
    train_joined,
    train_joined_everywhere,
)
from launching import ignore, options
from torch import Tensor, nn
from training import adam, batch_of, loss_of, momentum, normed_model, set_up, small_model, train_alone, weights
from workers import on_threads

from tutti.comm.base import Comm
from tutti.engine import Run, distribute
from tutti.errors import RunFailed, UserError
from tutti.exchanges.base import Exchange
from tutti.launch import launch
from tutti.spec import parse

SIZES = (1, 2, 3, 5)
GRADIENTS = [
    "ddp",
    "gradient-average(all-reduce(all-gather), bucket=0)",
    "gradient-average(overlap=false)",
    "gradient-average(update=bucket)",
    "gradient-average(update=bucket, wait=forward)",
    "gradient-average(bucket=auto)",
]
MODELS = ["allreduce-model", "model-average(update=bucket)", "update-average"]
APART = [
    "d-psgd",
    "relay-sgd",
    "model-average(push-sum)",
    "model-average(gossip(ring), order=combine-first)",
    "d2",
    "gradient-tracking",
    "quasi-global",
]
EVERY_SIZE = pytest.mark.parametrize("size", SIZES)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def missed_by(rank: int, size: int) -> int:
    return max(COUNTS[:size]) - COUNTS[rank]


# --- held against one worker -----------------------------------------------------------------------------------------


@EVERY_SIZE
@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("algorithm", GRADIENTS)
def test_gradients_are_those_of_all_that_still_train(algorithm: str, optimizer: Any, size: int) -> None:
    def work(comm: Comm) -> tuple[list[Tensor], list[int], float]:
        with set_up(comm, algorithm, optimizer=optimizer) as run:
            missed = train_joined(run, epochs=2)
            return state_of(run), missed, run.samples

    plain = small_model()
    train_alone(plain, optimizer(plain), 2 * joint_batches(size))
    found = on_threads(size, work)
    for rank, (state, missed, samples) in enumerate(found):
        torch.testing.assert_close(state[0], weights(plain), rtol=1e-10, atol=1e-12)
        assert len(state) == len(found[0][0]) > 1
        assert all(torch.equal(one, other) for one, other in zip(state, found[0][0], strict=True)), "optimizer included"
        assert missed == [missed_by(rank, size)] * 2
        assert samples == (len(batches_of(rank)[-1][0]) if COUNTS[rank] else 1), "as the loop left it"


@EVERY_SIZE
@pytest.mark.parametrize("algorithm", MODELS)
def test_models_are_those_of_all_that_still_train(algorithm: str, size: int) -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, algorithm, optimizer=sgd) as run:
            train_joined(run, epochs=2)
            return weights(run.model)

    plain = small_model()
    train_alone(plain, sgd(plain), 2 * joint_batches(size))
    found = on_threads(size, work)
    for each in found:
        torch.testing.assert_close(each, weights(plain), rtol=1e-10, atol=1e-12)
        assert torch.equal(each, found[0])


@EVERY_SIZE
@pytest.mark.parametrize("spec", ["gossip(ring)", "gossip(chain)"])
def test_gossip_goes_on_with_the_weights_of_those_that_have_finished(spec: str, size: int) -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, f"model-average({spec})", optimizer=momentum) as run:
            train_joined(run)
            return weights(run.model)

    models = [small_model() for _ in range(size)]
    optimizers = [momentum(model) for model in models]
    matrix = parse(spec, Exchange).mixing(size)
    for step in range(max(COUNTS[:size])):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            if step < COUNTS[rank]:
                train_alone(model, optimizer, [batches_of(rank)[step]])
        mixed = torch.from_numpy(np.asarray(matrix)) @ torch.stack([weights(model) for model in models])
        for model, vector in zip(models, mixed, strict=True):
            nn.utils.vector_to_parameters(vector, model.parameters())
    for found, model in zip(on_threads(size, work), models, strict=True):
        torch.testing.assert_close(found, weights(model), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("algorithm", APART)
def test_whatever_is_exchanged_all_come_out(algorithm: str, size: int) -> None:
    def work(comm: Comm) -> tuple[Tensor, int]:
        with set_up(comm, algorithm) as run:
            train_joined(run, epochs=2)
            run.algorithm.drain()
            return weights(run.model), run.replica.steps

    for found, steps in on_threads(size, work):
        assert found.isfinite().all()
        assert steps == 2 * max(COUNTS[:size])


def test_what_the_loop_does_with_the_gradient_reaches_those_that_have_finished() -> None:
    """They cannot know that the others clip."""

    def work(comm: Comm) -> list[Tensor]:
        with set_up(comm) as run:
            train_joined(run, lambda: nn.utils.clip_grad_norm_(run.model.parameters(), 0.01), epochs=2)
            return state_of(run)

    plain = small_model()
    optimizer = momentum(plain)

    def clip_and_step() -> None:
        nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        optimizer.step()

    train_alone(plain, optimizer, 2 * joint_batches(3), clip_and_step)
    found = on_threads(3, work)
    for state in found:
        torch.testing.assert_close(state[0], weights(plain), rtol=1e-10, atol=1e-12)
        assert all(torch.equal(one, other) for one, other in zip(state, found[0], strict=True))


def test_accumulated_gradients_count_as_one_step() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, optimizer=sgd) as run:
            with run.join():
                for batch in batches_of(run.rank):
                    run.samples = len(batch[0])
                    with run.accumulate():
                        loss_of(run.model, batch).backward()
                    loss_of(run.model, batch).backward()
                    run.step()
                    run.replica.optimizer.zero_grad()
            return weights(run.model)

    plain = small_model()
    train_alone(plain, torch.optim.SGD(plain.parameters(), lr=0.2), joint_batches(3))  # each gradient counts twice
    for found in on_threads(3, work):
        torch.testing.assert_close(found, weights(plain), rtol=1e-10, atol=1e-12)


# --- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ddp", "allreduce-model"])
def test_buffers_are_those_of_workers_that_still_train(algorithm: str) -> None:
    """Worker 0 finishes first; its batch norm follows the others."""

    def work(comm: Comm) -> list[Tensor]:
        with set_up(comm, algorithm, normed_model()) as run:
            train_joined(run)
            return [buffer.clone() for buffer in run.replica.model.buffers()]

    found = on_threads(2, work)  # worker 0 has 3 batches, worker 1 has 6
    for buffers in found:
        assert all(torch.equal(one, other) for one, other in zip(buffers, found[0], strict=True))
        assert int(buffers[-1]) == 6, "as many batches as worker 1 has seen"


def test_averaged_buffers_leave_those_out_that_have_finished() -> None:
    def work(comm: Comm) -> tuple[Tensor, Tensor]:
        model = normed_model()
        with set_up(comm, "allreduce-model", model) as run, run.join():
            own = torch.zeros(4, dtype=torch.float64)
            if comm.rank:
                loss = loss_of(run.model, batch_of(comm.rank, 0))
                own = model[1].running_mean.clone()
                loss.backward()
                run.step()
        return own, model[1].running_mean.clone()

    (_, first), (one, _), (other, _) = on_threads(3, work)
    torch.testing.assert_close(first, (one + other) / 2, rtol=1e-12, atol=0)


# --- hyper-parameters ------------------------------------------------------------------------------------------------


def test_those_that_have_finished_use_the_others_learning_rate_and_get_theirs_back() -> None:
    """Quasi-global momentum divides by it; a stale one would show in the mean of all."""

    def work(comm: Comm, finishes: bool) -> tuple[list[float], float]:
        with set_up(comm, "quasi-global") as run:
            group, seen = run.replica.optimizer.param_groups[0], []
            step = run.algorithm.step
            run.algorithm.step = lambda replica: (seen.append(group["lr"]), step(replica))[1]  # type: ignore
            with run.join():
                for number in range(1 if finishes and comm.rank == 1 else 4):
                    group["lr"] = 0.1 / (number + 1)
                    loss_of(run.model, batch_of(comm.rank, number)).backward()
                    run.step()
            return seen, group["lr"]

    together, apart = (on_threads(2, lambda comm, f=f: work(comm, f)) for f in (False, True))
    assert apart[1] == (together[1][0], 0.1)
    assert apart[0] == together[0]


def test_a_scheduler_that_fell_behind_is_noticed_and_can_catch_up() -> None:
    def work(comm: Comm, catches_up: bool) -> float:
        with set_up(comm) as run:
            schedule = torch.optim.lr_scheduler.StepLR(run.replica.optimizer, step_size=1, gamma=0.5)
            for _ in range(2):
                with run.join() as joined:
                    for batch in batches_of(comm.rank):
                        loss_of(run.model, batch).backward()
                        run.step()
                        schedule.step()
                for _ in range(joined.missed if catches_up else 0):
                    schedule.step()
            return float(schedule.get_last_lr()[0])

    assert on_threads(2, lambda comm: work(comm, True)) == [0.1 / 2**12] * 2
    with pytest.raises(
        UserError, match=r"^the optimizer's lr is 0\.0125 on worker 0 and 0\.0015625 on worker 1: a worker"
    ):
        on_threads(2, lambda comm: work(comm, False))


# --- what is refused -------------------------------------------------------------------------------------------------


def second_backward(run: Run) -> None:
    for step in range(2):
        loss_of(run.model, batch_of(run.rank, step)).backward()


def no_step(run: Run) -> None:
    loss_of(run.model, batch_of(run.rank, 0)).backward()


def scaled(run: Run) -> None:
    loss_of(run.model, batch_of(run.rank, 0)).backward()
    run.step(torch.amp.GradScaler("cpu"))


def nested(run: Run) -> None:
    with run.join():
        pass


@pytest.mark.parametrize(
    ("inside", "sentence"),
    [
        (
            second_backward,
            r"^inside run.join\(\) only one backward of a step exchanges gradients; put all but the last",
        ),
        (no_step, r"^the last backward inside run.join\(\) has no run.step\(\)"),
        (scaled, r"^run.join\(\) cannot keep the scale of a GradScaler"),
        (nested, r"^run.join\(\) inside run.join\(\)"),
        (lambda run: run.mean(1.0), r"^run.mean\(\) inside run.join\(\) would wait for workers whose loop has ended"),
        (lambda run: run.any(True), r"^a sum over all workers inside run.join\(\)"),
        (lambda run: run.consensus(), r"^run.consensus\(\) inside run.join\(\)"),
        (lambda run: run.consensus_distance(), r"^run.consensus_distance\(\) inside run.join\(\)"),
        (lambda run: run.consensus_state_dict(), r"^run.consensus_state_dict\(\) inside run.join\(\)"),
        (lambda run: run.load_state_dict({}), r"^loading a state inside run.join\(\)"),
    ],
)
def test_what_cannot_work_gets_a_sentence(inside: Any, sentence: str) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run, run.join():
            inside(run)

    with pytest.raises(UserError, match=sentence):
        on_threads(2, work)


@pytest.mark.parametrize("spec", ["ddp", "d-psgd"])
@pytest.mark.parametrize("early", [True, False])
def test_a_change_is_taken_in_while_all_are_there_and_else_refused(spec: str, early: bool) -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, spec, optimizer=sgd) as run:
            with run.join():
                for step in range(2 + comm.rank):
                    if step == (1 if early else 2):
                        run.model[0].weight.data = run.model[0].weight.data.clone()
                    run.model.zero_grad()
                    loss_of(run.model, batch_of(comm.rank, step)).backward()
                    run.step()
            return weights(run.model)

    if early:
        assert len(on_threads(3, work, timeout=5.0)) == 3
        return
    with pytest.raises(UserError, match=r"^'0.weight' has other memory, inside run.join\(\), where the loops"):
        on_threads(3, work, timeout=5.0)


def test_a_change_before_the_block_reaches_a_worker_without_a_batch() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, "ddp", optimizer=sgd) as run:
            run.model[0].weight.data = run.model[0].weight.data.clone()
            with run.join():
                for step in range(comm.rank):
                    loss_of(run.model, batch_of(comm.rank, step)).backward()
                    run.step()
            return weights(run.model)

    first, second = on_threads(2, work, timeout=5.0)
    assert torch.equal(first, second)


@pytest.mark.parametrize("spec", ["allreduce-model", "d-psgd-overlap"])
def test_which_optimizer_steps_is_not_known_to_those_that_have_finished(spec: str) -> None:
    def work(comm: Comm) -> None:
        model = small_model()
        both = [sgd(model[0]), sgd(model[2])]
        with distribute(model, both, spec, comm=comm) as run, run.join():
            for step in range(1 + comm.rank):
                loss_of(model, batch_of(comm.rank, step)).backward()
                for each in both:
                    run.step(optimizer=each)

    with pytest.raises(UserError, match=r"^inside run.join\(\) 'model-average.* steps with all optimizers"):
        on_threads(2, work, timeout=5.0)


def test_a_switch_is_joined_after_its_step_only() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm, "switch(2, ddp, allreduce-model)", optimizer=sgd) as run:
            with pytest.raises(UserError, match=r"^run.join\(\) does not work with 'switch.*join after the switch"):
                nested(run)
            for step in range(2):
                loss_of(run.model, batch_of(comm.rank, step)).backward()
                run.step()
                run.replica.optimizer.zero_grad()
            train_joined(run)
            return weights(run.model)

    first, other = on_threads(2, work)
    assert torch.equal(first, other)


def test_the_block_is_over_after_its_end() -> None:
    def work(comm: Comm) -> float:
        with set_up(comm) as run:
            train_joined(run)
            return float(run.mean(float(run.rank)))

    assert on_threads(3, work) == [1.0] * 3


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["ddp", "d-psgd"])
def test_processes_end_as_threads_do(spec: str) -> None:
    found = launch(train_joined_everywhere, (spec,), options(3, wire="shared"), ignore)
    assert found == on_threads(3, lambda comm: train_joined_everywhere(comm, ignore, spec))[0]
    assert len(set(found)) > 1, "they missed different numbers of steps"


def test_torchs_wire_knows_it_too() -> None:
    found = launch(train_joined_everywhere, ("ddp",), options(3, wire="torch"), ignore)
    assert len({each[:-16] for each in found}) == 1, "all but the missed steps"


def test_torch_ddp_has_a_join_of_its_own() -> None:
    with pytest.raises(UserError, match=r"'torch-ddp': use torch's own torch.distributed.algorithms.join.Join"):
        launch(train_joined_everywhere, ("torch-ddp",), options(2), ignore)


def test_a_worker_that_raises_inside_ends_the_others() -> None:
    with pytest.raises(RunFailed, match=r"^worker 1 raised LookupError: the dog ate the batch"):
        launch(leave_the_block, (), options(2), ignore)
