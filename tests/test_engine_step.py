"""`run.step()`: what it does, with mixed precision, and the state that it goes on from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_checks import alone
from torch import Tensor, nn
from training import (
    adam,
    batch_of,
    gradients,
    joint_batch,
    loss_of,
    momentum,
    set_up,
    small_model,
    train,
    train_alone,
    weights,
)
from workers import on_threads

from tutti.comm.base import Comm
from tutti.engine import Run
from tutti.errors import UserError

# --- step ------------------------------------------------------------------------------------------------------------


def test_the_optimizers_own_step_is_refused_in_a_sentence() -> None:
    with alone() as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        with pytest.raises(UserError, match=r"^call run\.step\(\) where optimizer\.step\(\) stood: .*algorithm$"):
            run.replica.optimizer.step()
        run.step()
        with pytest.raises(UserError, match=r"run\.step\(\)"):
            run.replica.optimizer.step()


def test_a_step_that_failed_is_no_licence_for_the_optimizers_own() -> None:
    with alone() as run:

        def fail(*_: Any) -> None:
            raise KeyError

        hook = run.replica.optimizer.register_step_post_hook(fail)
        for _ in range(3):
            loss_of(run.model, batch_of(0, 0)).backward()
            with pytest.raises(KeyError):
                run.step()
        hook.remove()
        with pytest.raises(UserError):
            run.replica.optimizer.step()
        run.step()


def test_a_learning_rate_schedule_works_and_warns_of_nothing() -> None:
    def rates(optimizer: torch.optim.Optimizer, step: Callable[[int], None]) -> list[float]:
        schedule = torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
                torch.optim.lr_scheduler.StepLR(optimizer, 2),
            ],
            milestones=[2],
        )
        seen = []
        for number in range(6):
            step(number)
            schedule.step()
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    def work(comm: Comm) -> tuple[list[float], Tensor]:
        with set_up(comm) as run:
            return rates(run.replica.optimizer, lambda n: train(run, range(n, n + 1))), weights(run.model)

    plain = small_model()
    optimizer = momentum(plain)
    expected = rates(optimizer, lambda n: train_alone(plain, optimizer, [joint_batch(2, n)]) and None)
    for seen, found in on_threads(2, work):
        assert seen == expected
        torch.testing.assert_close(found, weights(plain), rtol=1e-12, atol=0)


def test_clipping_right_after_backward_sees_the_averaged_gradient() -> None:
    plain = small_model()
    loss_of(plain, joint_batch(3, 0)).backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.01)

    def work(comm: Comm) -> tuple[Tensor, list[Tensor | None]]:
        with set_up(comm) as run:
            loss_of(run.model, batch_of(comm.rank, 0)).backward()
            norm = nn.utils.clip_grad_norm_(run.model.parameters(), 0.01)
            run.step()
            return norm, gradients(run.model)

    for norm, clipped in on_threads(3, work):
        torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
        for ours, theirs in zip(clipped, gradients(plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=0)


def test_a_worker_without_a_backward_takes_part_with_nothing() -> None:
    expected = small_model()
    for worker in (0, 2):
        (loss_of(expected, batch_of(worker, 0)) / 3).backward()
    torch.optim.SGD(expected.parameters(), lr=0.1).step()

    def work(comm: Comm) -> Tensor:
        with set_up(comm, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1)) as run:
            if comm.rank != 1:
                loss_of(run.model, batch_of(comm.rank, 0)).backward()
            run.step()
            return weights(run.model)

    for found in on_threads(3, work):
        torch.testing.assert_close(found, weights(expected), rtol=1e-12, atol=0)


def test_nobody_has_a_backward() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm) as run:
            run.step()
            assert gradients(run.model) == [None] * 4
            return weights(run.model)

    assert all(torch.equal(found, weights(small_model())) for found in on_threads(2, work))


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("algorithm", ["ddp", "ddp(bucket=0)", "ring"])
def test_accumulated_gradients_are_exchanged_once(algorithm: str, set_to_none: bool) -> None:
    def work(comm: Comm) -> tuple[Tensor, float]:
        with set_up(comm, algorithm) as run:
            for step in range(3):
                run.replica.optimizer.zero_grad(set_to_none)
                with run.accumulate():
                    for part in range(2):
                        loss_of(run.model, batch_of(comm.rank, 10 * step + part)).backward()
                loss_of(run.model, batch_of(comm.rank, 10 * step + 2)).backward()
                run.step()
            return weights(run.model), run.meter.sent("gradients")

    def work_plainly(comm: Comm) -> float:
        with set_up(comm, algorithm) as run:
            train(run, range(3))
            return run.meter.sent("gradients")

    plain = small_model()
    optimizer = momentum(plain)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(3):
            loss_of(plain, joint_batch(2, 10 * step + part)).backward()
        optimizer.step()
    for (found, sent), usual in zip(on_threads(2, work), on_threads(2, work_plainly), strict=True):
        torch.testing.assert_close(found, weights(plain), rtol=1e-12, atol=0)
        assert sent == usual


def test_a_step_behind_accumulation_alone_exchanges_what_was_added_up() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm) as run:
            with run.accumulate():
                loss_of(run.model, batch_of(comm.rank, 0)).backward()
            run.step()
            return weights(run.model)

    plain = small_model()
    train_alone(plain, momentum(plain), [joint_batch(2, 0)])
    for found in on_threads(2, work):
        torch.testing.assert_close(found, weights(plain), rtol=1e-12, atol=0)


def test_samples_weigh_the_shares() -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm) as run:
            for step in range(3):
                run.replica.optimizer.zero_grad()
                run.samples = 1 + 2 * comm.rank
                loss_of(run.model, batch_of(comm.rank, step, samples=1 + 2 * comm.rank)).backward()
                run.step()
            return weights(run.model)

    plain = small_model()
    parts = [[batch_of(worker, step, 1 + 2 * worker) for worker in range(3)] for step in range(3)]
    batches = [(torch.cat([x for x, _ in part]), torch.cat([y for _, y in part])) for part in parts]
    train_alone(plain, momentum(plain), batches)
    for found in on_threads(3, work):
        torch.testing.assert_close(found, weights(plain), rtol=1e-12, atol=0)


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf")])
def test_samples_must_be_a_number_that_is_not_negative(count: float) -> None:
    with alone() as run:
        with pytest.raises(UserError, match=f"run.samples must be a number, 0 or more, not {count}"):
            run.samples = count
        assert run.samples == 1.0


# --- mixed precision -------------------------------------------------------------------------------------------------


def scaled_step(run: Run, scaler: torch.amp.GradScaler, step: int, factor: float = 1.0) -> None:
    run.replica.optimizer.zero_grad()
    inputs, targets = batch_of(run.rank, step, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.mse_loss(run.model(inputs).float(), targets) * factor
    scaler.scale(loss).backward()
    scaler.unscale_(run.replica.optimizer)
    nn.utils.clip_grad_norm_(run.model.parameters(), 10.0)
    run.step(scaler)
    scaler.update()


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_an_overflow_on_one_worker_makes_all_skip(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    def work(comm: Comm) -> list[tuple[Tensor, float]]:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with set_up(comm, model=small_model(dtype=torch.float32), optimizer=optimizer) as run:
            seen = []
            for step in range(3):
                scaled_step(run, scaler, step, float("inf") if step == 1 and comm.rank == 1 else 1.0)
                seen.append((weights(run.model), scaler.get_scale()))
            return seen

    results = on_threads(3, work)
    for seen in results:
        (first, _), (second, scale), (third, _) = seen
        assert torch.equal(first, second)
        assert scale == 512.0
        assert not torch.equal(second, third)
        assert third.isfinite().all()
        assert all(torch.equal(a, b) and s == t for (a, s), (b, t) in zip(seen, results[0], strict=True))


def test_a_scaler_that_is_switched_off_changes_nothing() -> None:
    def work(comm: Comm, scaler: torch.amp.GradScaler | None) -> Tensor:
        with set_up(comm) as run:
            for step in range(3):
                run.replica.optimizer.zero_grad()
                loss_of(run.model, batch_of(comm.rank, step)).backward()
                run.step(scaler)
            return weights(run.model)

    with_it = on_threads(2, lambda comm: work(comm, torch.amp.GradScaler("cpu", enabled=False)))
    without = on_threads(2, lambda comm: work(comm, None))
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))


# --- state -----------------------------------------------------------------------------------------------------------


def test_the_state_of_another_run_is_refused() -> None:
    def state(comm: Comm, spec: str) -> dict[str, Any]:
        with set_up(comm, spec) as run:
            train(run, range(1))
            return run.state_dict()

    ours = on_threads(2, lambda comm: state(comm, "ddp"))[0]
    assert (ours["spec"], ours["workers"], ours["steps"]) == ("gradient-average(all-reduce(ring))", 2, 1)
    of_ring = on_threads(2, lambda comm: state(comm, "ring"))[0]

    def work(comm: Comm) -> Tensor:
        with set_up(comm) as run:
            with pytest.raises(UserError, match=r"this state is of '.*overlap=false\)' and cannot continue '"):
                run.load_state_dict(of_ring)
            if comm.size != 2:
                with pytest.raises(UserError, match=f"is of 2 workers and cannot continue with {comm.size}"):
                    run.load_state_dict(ours)
            assert run.replica.steps == 0
            return weights(run.model)

    for size in (1, 2, 3):
        for found in on_threads(size, work):
            assert torch.equal(found, weights(small_model())), "a refused state changes nothing"


def test_going_back_to_the_start_keeps_the_guards() -> None:
    """The first batch is compared once; going back does not take off other hooks in its place."""

    def work(comm: Comm) -> Tensor:
        with set_up(comm) as run:
            start = {k: v.clone() if isinstance(v, Tensor) else v for k, v in run.replica.model.state_dict().items()}
            state = {**run.state_dict(), "model": start}
            for _ in range(3):
                train(run, range(1))
                run.load_state_dict(state)
                with pytest.raises(UserError):
                    run.replica.optimizer.step()
            return weights(run.model)

    assert all(torch.equal(found, weights(small_model())) for found in on_threads(2, work))


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_all_workers_may_load_one_state_and_it_stays_as_it_is(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
) -> None:
    def begin(comm: Comm) -> tuple[dict[str, Any], Tensor]:
        with set_up(comm, optimizer=optimizer) as run:
            train(run, range(2))
            state = copy.deepcopy(run.state_dict())
            train(run, range(2, 5))
            return state, weights(run.model)

    def go_on(comm: Comm) -> Tensor:
        with set_up(comm, optimizer=optimizer) as run:
            run.load_state_dict(shared)
            train(run, range(2, 5))
            return weights(run.model)

    (shared, expected), _ = on_threads(2, begin)
    for _ in range(2):
        assert all(torch.equal(found, expected) for found in on_threads(2, go_on))


def test_a_loaded_model_still_lies_in_the_buckets() -> None:
    with alone() as run:
        state = run.state_dict()
        run.load_state_dict(state)
        bucket = run.replica.buckets[0]
        bucket.weights.zero_()
        assert not weights(run.model).any()
