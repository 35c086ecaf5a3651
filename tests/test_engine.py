"""`distribute` and its `Run`: the loop a user writes, what it promises, and what it refuses."""

from __future__ import annotations

import copy
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from torch import Tensor, nn
from training import (
    adam,
    batch_of,
    gradients,
    joint_batch,
    loss_of,
    momentum,
    normed_model,
    seeded,
    set_up,
    small_model,
    train,
    train_alone,
    weights,
)
from workers import on_threads

from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm, PeerLost
from tutti.comm.threads import World
from tutti.engine import Run, distribute
from tutti.errors import UserError


def alone(algorithm: str = "ddp", model: nn.Module | None = None) -> Run:
    return set_up(World(1).comm(0), algorithm, model)


def lanes() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("tutti-lane")}


# --- plain use -------------------------------------------------------------------------------------------------------


def test_without_a_launcher_it_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    model, plain = small_model(), small_model()
    run = distribute(model, momentum(model))
    assert (run.rank, run.size, run.model) == (0, 1, model)
    assert str(run.algorithm) == "gradient-average(all-reduce(ring))"
    train(run, range(3))
    run.close()
    train_alone(plain, momentum(plain), [batch_of(0, step) for step in range(3)])
    assert torch.equal(weights(model), weights(plain))


def test_an_optimizer_is_distributed_once_at_a_time() -> None:
    model = small_model()
    optimizer = momentum(model)
    run = distribute(model, optimizer, comm=World(1).comm(0))
    with pytest.raises(UserError, match=r"distributed already; close\(\) that run first"):
        distribute(model, optimizer, comm=World(1).comm(0))
    run.close()
    distribute(model, optimizer, comm=World(1).comm(0)).close()


def test_a_state_that_is_none_is_refused() -> None:
    with alone() as run, pytest.raises(UserError, match=r"no state of run.state_dict\(\): it holds checkpoint"):
        run.load_state_dict({"checkpoint": run.state_dict()})


@pytest.mark.parametrize("size", [2, 3])
def test_workers_together_train_as_one_on_the_joint_batch(size: int) -> None:
    def work(comm: Comm) -> Tensor:
        with set_up(comm) as run:
            train(run, range(4))
            return weights(run.model)

    plain = small_model()
    train_alone(plain, momentum(plain), [joint_batch(size, step) for step in range(4)])
    for found in on_threads(size, work):
        torch.testing.assert_close(found, weights(plain), rtol=1e-12, atol=0)


def test_an_algorithm_may_be_handed_in_as_an_object() -> None:
    with set_up(World(1).comm(0), GradientAverage(bucket=0)) as run:
        assert str(run.algorithm) == "gradient-average(all-reduce(ring), bucket=0)"


@pytest.mark.parametrize(
    ("workers", "algorithm"),
    [(1, "ddp"), (2, "ddp"), (2, "torch-ddp"), (2, "ddp(bucket=auto, update=bucket, wait=forward)")],
)
def test_a_script_that_just_ends(workers: int, algorithm: str) -> None:
    """Neither close() nor with: the lane and the wire end with the process, and nobody waits for anybody."""
    program = Path(__file__).with_name("programs") / "just_ends.py"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen([sys.executable, "-W", "error", str(program), str(rank), str(workers), port, algorithm])
        for rank in range(workers)
    ]
    try:
        assert [process.wait(50) for process in started] == [0] * workers
    finally:
        for process in started:
            process.kill()


def test_nothing_is_left_running_after_close() -> None:
    before = lanes()
    runs = []

    def work(comm: Comm) -> None:
        run = set_up(comm)
        runs.append(run)
        train(run, range(1))
        run.close()
        run.close()  # once more does nothing

    on_threads(3, work)
    assert len(runs) == 3
    assert lanes() <= before


def test_with_closes_after_an_error_too() -> None:
    before = lanes()
    with pytest.raises(KeyError), alone() as run:
        raise KeyError
    assert lanes() <= before
    run.replica.optimizer.step()  # the optimizer is the user's again


class Failing(GradientAverage):
    """Hears only at the end that something went wrong."""

    def drain(self) -> None:
        raise KeyError("the last step's")


def test_close_tells_what_nobody_has_heard_yet_and_lets_go_all_the_same() -> None:
    before = lanes()
    run = set_up(World(1).comm(0), Failing())
    with pytest.raises(KeyError, match="the last step's"):
        run.close()
    assert lanes() <= before
    run.close()
    run.replica.optimizer.step()
    with pytest.raises(KeyError, match="the user's"), set_up(World(1).comm(0), Failing()):
        raise KeyError("the user's")
    assert lanes() <= before


def test_hooks_are_gone_after_close_and_a_second_run_works() -> None:
    def work(comm: Comm) -> tuple[Tensor, int]:
        model = small_model()
        optimizer = momentum(model)
        with distribute(model, optimizer, "ring", comm=comm) as run:
            train(run, range(2))
        sent = run.meter.sent("gradients")
        train_alone(model, optimizer, [joint_batch(comm.size, 2)])
        assert run.meter.sent("gradients") == sent
        with distribute(model, optimizer, "ddp(bucket=0)", comm=comm) as run:
            train(run, range(3, 5))
        hooks = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
        return weights(model), hooks + len(optimizer._optimizer_step_pre_hooks) + len(model._forward_pre_hooks)

    plain = small_model()
    train_alone(plain, momentum(plain), [joint_batch(2, step) for step in range(5)])
    for found, hooks in on_threads(2, work):
        torch.testing.assert_close(found, weights(plain), rtol=1e-12, atol=0)
        assert hooks == 0


@pytest.mark.parametrize("bucket", ["0", "25MiB"])
def test_a_set_up_that_fails_leaves_nothing_behind(bucket: str) -> None:
    before = lanes()
    model = small_model()
    with pytest.raises(ValueError, match="root of 'star'"):
        alone(f"gradient-average(all-reduce(star(root=3)), bucket={bucket})", model)
    assert lanes() <= before
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    with alone("ddp", model) as run:
        train(run, range(1))


# --- the start -------------------------------------------------------------------------------------------------------


class Peculiar(nn.Module):
    """Buffers that are saved, buffers that are not, an odd memory format, and a state that is no tensor."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with seeded(seed):
            self.body = normed_model(seed)
            self.register_buffer("saved", torch.randn(3, 2).t())
            self.register_buffer("unsaved", torch.randn(4), persistent=False)
            self.register_buffer("count", torch.tensor(seed))
            self.scale = nn.Parameter(torch.randn(2, 3, dtype=torch.float64).t())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs @ (self.scale @ self.scale.t()))

    def get_extra_state(self) -> Any:
        return {"version": "1.0"}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"version": "1.0"}


def everything(model: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


def test_all_begin_with_worker_0s_parameters_and_buffers() -> None:
    def work(comm: Comm) -> list[Tensor]:
        model = Peculiar(seed=comm.rank + 1) if comm.rank else Peculiar(seed=0)
        with set_up(comm, model=model):
            return everything(model)

    expected = everything(Peculiar(seed=0))
    for found in on_threads(3, work):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_parameters_that_only_the_optimizer_knows_begin_equal_too() -> None:
    def work(comm: Comm) -> Tensor:
        model, scale = small_model(), nn.Parameter(torch.full((2,), float(comm.rank), dtype=torch.float64))
        optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
        with distribute(model, optimizer, comm=comm) as run:
            (run.model(batch_of(comm.rank, 0)[0]) * scale).sum().backward()
            run.step()
            return scale.detach()

    first, *others = on_threads(3, work)
    assert first.any()
    assert all(torch.equal(first, other) for other in others)


def other_shape(rank: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4 + rank // 2), nn.Tanh(), nn.Linear(4 + rank // 2, 2)).double()


def other_number(rank: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(1 + rank // 2))).double()


def other_type(rank: int) -> nn.Module:
    return small_model().to(torch.float32 if rank == 2 else torch.float64)


def other_name(rank: int) -> nn.Module:
    return nn.ModuleDict({"b" if rank == 2 else "a": nn.Linear(3, 2).double()})


def other_frozen(rank: int) -> nn.Module:
    model = small_model()
    model[0].weight.requires_grad_(rank != 2)
    return model


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("build", [other_shape, other_number, other_type, other_name, other_frozen])
def test_other_models_are_refused_on_every_worker(build: Callable[[int], nn.Module], strict: bool) -> None:
    before = lanes()

    def work(comm: Comm) -> str:
        with pytest.raises(UserError) as caught:
            set_up(comm, model=build(comm.rank))
        return str(caught.value)

    said = on_threads(3, work, strict=strict)
    assert set(said) == {"the model of worker 2 has other parameters than that of worker 0"}
    assert lanes() <= before


def test_a_model_without_parameters_is_refused() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(UserError, match="the model has no parameters"):
        distribute(nn.Tanh(), optimizer, comm=World(1).comm(0))


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


@pytest.mark.parametrize("count", [0, -1, float("nan"), float("inf")])
def test_samples_must_be_a_positive_number(count: float) -> None:
    with alone() as run:
        with pytest.raises(UserError, match=f"run.samples must be positive, not {count}"):
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


# --- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ddp", "ring", "gather-scatter"])
def test_buffers_are_worker_0s_after_every_step(algorithm: str) -> None:
    def work(comm: Comm) -> list[Tensor]:
        model = Peculiar(seed=comm.rank)
        with set_up(comm, algorithm, model) as run:
            own = [run.replica.model.body[1].running_mean.clone()]
            for step in range(3):
                run.replica.optimizer.zero_grad()
                loss = loss_of(run.model, batch_of(comm.rank, step))
                own.append(model.body[1].running_mean.clone())
                loss.backward()
                run.step()
            assert int(model.body[1].num_batches_tracked) == 3
            return [own[-1], *everything(model)]

    first, *others = on_threads(3, work)
    for other in others:
        assert not torch.equal(first[0], other[0]), "before the exchange every worker has its own"
        assert all(torch.equal(a, b) for a, b in zip(first[1:], other[1:], strict=True))
    assert any(torch.equal(first[0], buffer) for buffer in first[1:]), "and what all have is worker 0's"


class AveragedBuffers(GradientAverage):
    buffers = "average"


class LocalBuffers(GradientAverage):
    buffers = "local"


def test_buffers_may_be_averaged_or_left_alone() -> None:
    def work(comm: Comm, algorithm: GradientAverage) -> tuple[Tensor, Tensor]:
        model = normed_model()
        with set_up(comm, algorithm, model) as run:
            loss = loss_of(run.model, batch_of(comm.rank, 0))
            own = model[1].running_mean.clone()
            loss.backward()
            assert int(model[1].num_batches_tracked) == 1
            return own, model[1].running_mean.clone()

    averaged = on_threads(3, lambda comm: work(comm, AveragedBuffers()))
    mean = torch.stack([own for own, _ in averaged]).mean(0)
    for _, found in averaged:
        torch.testing.assert_close(found, mean, rtol=1e-12, atol=0)
    for own, found in on_threads(3, lambda comm: work(comm, LocalBuffers())):
        assert torch.equal(own, found)


# --- the first batch -------------------------------------------------------------------------------------------------


def first_steps(comm: Comm, batch: Callable[[int, int], Any]) -> None:
    with set_up(comm) as run:
        for step in range(2):
            loss_of(run.model, batch(comm.rank, step)).backward()
            run.step()


def test_a_warning_when_all_see_the_same_first_batch() -> None:
    with pytest.warns(UserWarning, match="all 2 workers saw the same first batch: give each its own share") as caught:
        on_threads(2, lambda comm: first_steps(comm, lambda _, step: batch_of(0, step)))
    assert [Path(warning.filename).name for warning in caught] == ["test_engine.py"]


def test_no_warning_when_one_differs_or_is_alone() -> None:
    on_threads(3, lambda comm: first_steps(comm, lambda rank, step: batch_of(rank // 2, step)))
    on_threads(3, lambda comm: first_steps(comm, lambda rank, step: batch_of(rank if step == 0 else 0, step)))
    on_threads(1, lambda comm: first_steps(comm, batch_of))


def test_evaluating_the_same_data_first_is_no_reason_to_warn() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            run.model.eval()
            run.model(batch_of(0, 0)[0])
            run.model.train()
            train(run, range(1))

    on_threads(2, work)


class Lookup(nn.Module):
    """Takes whatever it is given, by position and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, matrix: Any, *, scale: Any = None) -> Tensor:
        return (matrix @ self.weight).sum() * (1 if scale is None else scale.sum())


@pytest.mark.parametrize(
    ("matrix", "scale"),
    [
        (torch.eye(3).to_sparse(), None),
        (torch.eye(3), torch.tensor(2)),
        (torch.eye(3), torch.tensor([True, False])),
        (torch.eye(3, dtype=torch.float32).t(), torch.ones(2, 0).bfloat16()),
        (torch.zeros(0, 3), None),
        (torch.ones(1, 3).expand(4, 3), None),
    ],
)
def test_inputs_of_any_kind_are_looked_at(matrix: Tensor, scale: Tensor | None) -> None:
    with alone(model=Lookup()) as run:
        run.model(matrix, scale=scale).backward()
        run.step()


def test_inputs_by_name_are_looked_at() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm, model=Lookup()) as run:
            run.model(torch.eye(3), scale=torch.tensor(float(comm.rank))).backward()
            run.step()

    on_threads(2, work)


# --- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_figures_over_all_workers(size: int) -> None:
    def work(comm: Comm) -> tuple[Any, ...]:
        with set_up(comm) as run:
            rank = comm.rank
            matrix = torch.full((2, 3), float(rank), dtype=torch.float64).t()
            with_gradient = torch.tensor(float(rank), requires_grad=True)
            assert not run.mean(with_gradient).requires_grad
            assert torch.equal(matrix, torch.full((3, 2), float(rank), dtype=torch.float64)), "left as it was"
            return (
                run.mean(float(rank)),
                run.mean(rank),
                run.mean(matrix),
                run.mean(torch.tensor(rank)),
                run.mean(torch.tensor([True, rank == 0])),
                run.mean(torch.tensor([200], dtype=torch.uint8)),
                run.sums([1.0, rank, -2.5]),
                run.any(rank == size - 1),
                run.any(False),
                run.any(True),
                run.size,
            )

    mean = (size - 1) / 2
    for one, two, matrix, whole, flags, bytes_, sums, last, nobody, everybody, found in on_threads(size, work):
        assert one == two == mean
        assert torch.equal(matrix, torch.full((3, 2), mean, dtype=torch.float64))
        assert float(whole) == mean
        assert flags.tolist() == [1.0, 1 / size]
        assert bytes_.tolist() == [200.0]
        assert sums.tolist() == [size, size * mean, -2.5 * size]
        assert (last, nobody, everybody, found) == (True, False, True, size)


class SlowExchange(GradientAverage):
    """Takes time on a clock that only it moves: 5 on the lane while backward goes on, 2 after it."""

    def finish(self) -> None:
        super().finish()
        clock = self._lane.comm.clock
        if isinstance(clock, FakeClock) and self._replica._running:
            self._lane.busy.append((clock.now() - 5, clock.now() + 2))
            clock.sleep(2.0)


def test_times_are_hidden_or_exposed() -> None:
    clock: Any = FakeClock()
    with set_up(World(1, clock=clock).comm(0), SlowExchange()) as run:
        assert run.take_times() == (0.0, 0.0)
        for step in range(2):
            train(run, range(step, step + 1))
        assert run.take_times() == (10.0, 4.0)
        assert run.take_times() == (0.0, 0.0)


def test_agreeing_on_buffers_hides_nothing_that_was_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = FakeClock()

    def work(comm: Comm) -> tuple[float, float]:
        run = set_up(comm, SlowExchange() if comm.rank == 0 else GradientAverage(), normed_model())
        train(run, range(1))
        run.close()
        return run.take_times()

    def slow(run: Run) -> None:
        if run.rank == 0:
            clock.sleep(3.0)

    monkeypatch.setattr(Run, "_agree_on_buffers", slow)
    assert on_threads(2, work, clock=clock)[0] == (5.0, 5.0)


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


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ddp", "ring"])
def test_a_dead_worker_ends_the_backward_of_the_others(algorithm: str) -> None:
    world = World(2, timeout=20.0)
    lost: list[BaseException] = []

    def survivor() -> None:
        run = set_up(world.comm(0), algorithm)
        try:
            train(run, range(2))
        except PeerLost as error:
            lost.append(error)
        finally:
            run.close()

    def victim() -> None:
        run = set_up(world.comm(1), algorithm)
        train(run, range(1))
        world.abort(1)
        run.close()

    threads = [threading.Thread(target=function) for function in (survivor, victim)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not any(thread.is_alive() for thread in threads)
    assert "worker 1 died" in str(lost[0])
