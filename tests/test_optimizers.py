"""Several optimizers in one run, and hooks of the user around their steps."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from engine_checks import alone
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from training import batch_of, joint_batch, loss_of, momentum, set_up, small_model, weights
from workers import on_threads

from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.engine import Run, distribute
from tutti.errors import UserError

# on three workers a ring of neighbours is everybody
SPECS = ["ddp(bucket=0)", "ddp(update=bucket)", "model-average(bucket=0)", "update-average(all-reduce)", "d-psgd"]


def two_of(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    """Different ones, and the second has two groups."""
    groups = [{"params": [model[2].weight]}, {"params": [model[2].bias], "lr": 0.05}]
    return [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(groups, lr=0.2, weight_decay=0.01)]


def learn_alone(size: int, steps: int, in_turn: bool) -> Tensor:
    model = small_model()
    both = two_of(model)
    for step in range(steps):
        model.zero_grad()
        loss_of(model, joint_batch(size, step)).backward()
        for each in [both[step % 2]] if in_turn else both:
            each.step()
    return weights(model)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_all_of_them_step(spec: str, size: int) -> None:
    def work(comm: Comm) -> Tensor:
        model = small_model()
        with distribute(model, two_of(model), spec, comm=comm) as run:
            for step in range(4):
                model.zero_grad()
                loss_of(model, batch_of(run.rank, step)).backward()
                run.step()
        return weights(model)

    for found in on_threads(size, work):
        torch.testing.assert_close(found, learn_alone(size, 4, in_turn=False), rtol=1e-10, atol=0)


@pytest.mark.parametrize("spec", [s for s in SPECS if "update=bucket" not in s])
def test_one_of_them_steps(spec: str) -> None:
    def work(comm: Comm) -> tuple[Tensor, list[int]]:
        model = small_model()
        both = two_of(model)
        with distribute(model, both, spec, comm=comm) as run:
            for step in range(5):
                model.zero_grad()
                loss_of(model, batch_of(run.rank, step)).backward()
                run.step(optimizer=both[step % 2])
            return weights(model), sorted({bucket.steps for bucket in run.replica.buckets})

    for found, steps in on_threads(3, work):
        torch.testing.assert_close(found, learn_alone(3, 5, in_turn=True), rtol=1e-10, atol=0)
        assert steps == [2, 3]


@pytest.mark.parametrize("spec", ["relay-sgd", "sgp", "d2", "gradient-tracking", "qg-dsgd", "d-psgd-overlap"])
def test_saved_and_restored_between_steps_in_turn(spec: str) -> None:
    def go(run: Run, both: list[torch.optim.Optimizer], steps: range) -> None:
        for step in steps:
            run.replica.model.zero_grad()
            loss_of(run.replica.model, batch_of(run.rank, step)).backward()
            run.step(optimizer=both[step % 3 == 0])

    def make(comm: Comm) -> tuple[Run, list[torch.optim.Optimizer]]:
        model = small_model()
        both = two_of(model)
        return distribute(model, both, spec, comm=comm), both

    def work(comm: Comm) -> bool:
        run, both = make(comm.fork("one"))
        go(run, both, range(4))
        file = io.BytesIO()
        torch.save(run.state_dict(), file)
        go(run, both, range(4, 8))
        expected = weights(run.replica.model)
        run.close()
        run, both = make(comm.fork("other"))
        file.seek(0)
        run.load_state_dict(torch.load(file, weights_only=True))
        go(run, both, range(4, 8))
        run.close()
        return torch.equal(weights(run.replica.model), expected)

    assert all(on_threads(3, work))


def test_a_state_of_another_number_of_optimizers() -> None:
    model = small_model()
    run = distribute(model, two_of(model), "ddp", comm=World(1).comm(0))
    state = run.state_dict()
    run.close()
    with alone() as other, pytest.raises(UserError, match="this state is of 2 optimizers, and this run has 1"):
        other.load_state_dict(state)


def test_what_cannot_be() -> None:
    model = small_model()
    both = two_of(model)
    with distribute(model, both, "ddp(update=bucket)", comm=World(1).comm(0)) as run:
        loss_of(model, batch_of(0, 0)).backward()
        with pytest.raises(UserError, match="has stepped with every optimizer during backward"):
            run.step(optimizer=both[0])
        with pytest.raises(UserError, match=r"none of those handed to tutti.distribute"):
            run.step(optimizer=momentum(small_model()))
    with pytest.raises(UserError, match="a parameter is in two optimizers"):
        distribute(model, [momentum(model), *both], "ddp", comm=World(1).comm(0))


def test_a_second_run_on_one_model_is_refused() -> None:
    model = small_model()
    both = two_of(model)
    with distribute(model, both[0], comm=World(1).comm(0)):
        for again in (both[0], both[1]):
            with pytest.raises(UserError, match=r"distributed already; close\(\) that run first, or hand several"):
                distribute(model, again, comm=World(1).comm(0))
    distribute(model, both[1], comm=World(1).comm(0)).close()


# --- hooks of the user -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["pre", "post", "global"])
@pytest.mark.parametrize("spec", ["ddp(bucket=0)", "model-average(bucket=0)", "update-average(all-reduce, bucket=0)"])
def test_hooks_around_a_step_run_once(spec: str, where: str) -> None:
    calls: list[Any] = []

    def note(*args: Any) -> None:
        calls.append(len(args[0].param_groups[0]["params"]))

    with set_up(World(1).comm(0), spec) as run:
        optimizer = run.replica.optimizer
        if where == "global":
            handle = register_optimizer_step_post_hook(note)
        else:
            handle = getattr(optimizer, f"register_step_{where}_hook")(note)
        try:
            for step in range(3):
                loss_of(run.model, batch_of(0, step)).backward()
                run.step()
                optimizer.zero_grad()
        finally:
            handle.remove()
    assert calls == [4, 4, 4]  # with all parameters, and not with those of a bucket


@pytest.mark.parametrize("spec", ["ddp(update=bucket)", "model-average(update=bucket)"])
def test_hooks_that_would_not_be_called_are_refused(spec: str) -> None:
    model = small_model()
    optimizer = momentum(model)
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(UserError, match="has hooks that expect one whole step; use update=whole"):
        distribute(model, optimizer, spec, comm=World(1).comm(0))
    handle.remove()
    with distribute(model, optimizer, spec, comm=World(1).comm(0)) as run:
        optimizer.register_step_post_hook(lambda *_: None)
        loss_of(model, batch_of(0, 0)).backward()
        with pytest.raises(UserError, match="has hooks that expect one whole step; use update=whole"):
            run.step()


def test_another_optimizer_does_not_step_on_what_a_run_trains() -> None:
    with set_up(World(1).comm(0), "ddp") as run:
        model = run.replica.model
        assert isinstance(model, nn.Sequential)
        other = torch.optim.Adam(model[2].parameters())
        loss_of(model, batch_of(0, 0)).backward()
        before = weights(model)
        with pytest.raises(UserError, match="has parameters that a run trains with another one; call run"):
            other.step()
        assert torch.equal(weights(model), before)
        momentum(small_model()).step()  # of another model
        run.step()
    other.step()


@pytest.mark.parametrize("spec", ["ddp(bucket=0)", "model-average(bucket=0)"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_of_the_user_on_a_gradient_comes_first(spec: str, when: str) -> None:
    def halve(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad *= 0.5

    def hook_on(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(halve)

    def work(comm: Comm) -> Tensor:
        model = small_model()
        if when == "before":
            hook_on(model)
        with set_up(comm, spec, model) as run:
            if when == "after":
                hook_on(model)
            for step in range(3):
                model.zero_grad()
                loss_of(model, batch_of(run.rank, step)).backward()
                run.step()
        return weights(model)

    plain = small_model()
    hook_on(plain)
    optimizer = momentum(plain)
    for step in range(3):
        plain.zero_grad()
        loss_of(plain, joint_batch(3, step)).backward()
        optimizer.step()
    for found in on_threads(3, work):
        torch.testing.assert_close(found, weights(plain), rtol=1e-10, atol=0)
