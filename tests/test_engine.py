"""`distribute` and its `Run`: the loop a user writes, what it promises, and what it refuses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_checks import Peculiar, alone, everything, lanes
from torch import Tensor, nn
from training import (
    batch_of,
    joint_batch,
    momentum,
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
from tutti.engine import distribute
from tutti.errors import UserError

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
    [(1, "ddp"), (2, "torch-ddp"), (2, "ddp(bucket=auto, update=bucket, wait=forward)")],
)
def test_a_script_that_just_ends(workers: int, algorithm: str) -> None:
    """Neither close() nor with: the lane and the wire end with the process, and nobody waits for anybody."""
    program = Path(__file__).with_name("programs") / "just_ends.py"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(program), str(rank), str(workers), port, algorithm],
            env={**os.environ, "TUTTI_SECRET": "a test"},
        )
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
@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (other_shape, "'0.weight' is (5, 3) on worker 2 and (4, 3) on worker 0"),
        (other_number, "worker 2 has '1.weight' in its model, and worker 0 has not"),
        (other_type, "'0.weight' is float32 on worker 2 and float64 on worker 0"),
        (other_name, "the models differ: worker 2 has 'b.weight' where worker 0 has 'a.weight'"),
        (other_frozen, "'0.weight' has requires_grad=False on worker 2 and True on worker 0"),
    ],
)
def test_other_models_are_refused_on_every_worker(
    build: Callable[[int], nn.Module], sentence: str, strict: bool
) -> None:
    before = lanes()

    def work(comm: Comm) -> str:
        with pytest.raises(UserError) as caught:
            set_up(comm, model=build(comm.rank))
        return str(caught.value)

    said = on_threads(3, work, strict=strict)
    assert set(said) == {sentence}
    assert lanes() <= before


def test_a_model_without_parameters_is_refused() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(UserError, match="the model has no parameters"):
        distribute(nn.Tanh(), optimizer, comm=World(1).comm(0))


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
    assert "worker 1 died" in str(lost[0]) or "worker 1 has closed its run" in str(lost[0])
