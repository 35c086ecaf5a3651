"""update=bucket and wait=forward give the same bits as the default; what they refuse, and what goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from bucket_updates import BY_BUCKET, Optimizer, forked_step, plain_step
from torch import Tensor, nn
from training import (
    Forked,
    Tied,
    batch_of,
    gradients,
    loss_of,
    momentum,
    normed_model,
    set_up,
    small_model,
    train,
    weights,
)
from workers import SIZES, on_threads

from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm, PeerLost
from tutti.comm.threads import World
from tutti.engine import Run
from tutti.errors import UserError

# --- the same weights ------------------------------------------------------------------------------------------------


def decayed_adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)


def two_rates(model: nn.Module) -> torch.optim.SGD:
    first, *others = model.children()
    groups = [{"params": first.parameters()}, {"params": [p for m in others for p in m.parameters()], "lr": 0.02}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)


def follow(
    comm: Comm,
    how: str,
    model: Callable[[], nn.Module] = small_model,
    optimizer: Optimizer = momentum,
    step: Callable[[Run, int], None] = plain_step,
    asking: bool = True,
) -> list[Tensor]:
    """The weights after every step, or only at the end: asking for them waits for what is under way."""
    with set_up(comm, f"gradient-average(bucket=48B, {how})", model(), optimizer) as run:
        seen = []
        for number in range(3):
            step(run, number)
            if asking:
                run.state_dict()
                seen.append(weights(run.replica.model))
    return [*seen, weights(run.replica.model)]


@cache
def follow_default(size: int, **options: Any) -> list[list[Tensor]]:
    return on_threads(size, lambda comm: follow(comm, "update=whole", **options))


def assert_same_as_default(size: int, how: str, **options: Any) -> None:
    """Step by step, and at the end also when nobody has asked in between."""
    expected = follow_default(size, **options)
    followed = on_threads(size, lambda comm: follow(comm, how, **options))
    at_the_end = on_threads(size, lambda comm: follow(comm, how, **options, asking=False))
    for found, (last,), each in zip(followed, at_the_end, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, each, strict=True))
        assert torch.equal(last, each[-1])


@pytest.mark.parametrize("how", BY_BUCKET)
@pytest.mark.parametrize("optimizer", [momentum, decayed_adam])
@pytest.mark.parametrize("size", SIZES)
def test_it_steps_as_the_default_does(size: int, optimizer: Optimizer, how: str) -> None:
    assert_same_as_default(size, how, optimizer=optimizer)


@pytest.mark.parametrize("how", BY_BUCKET)
def test_it_steps_as_the_default_does_with_groups(how: str) -> None:
    assert_same_as_default(3, how, optimizer=two_rates)


@pytest.mark.parametrize("how", BY_BUCKET)
@pytest.mark.parametrize("model", [Tied, normed_model])
def test_it_steps_as_the_default_does_with_shared_weights_and_with_buffers(
    model: Callable[[], nn.Module], how: str
) -> None:
    assert_same_as_default(3, how, model=model)


def same_fork_step(run: Run, step: int) -> None:
    run.replica.model.branch = ("even", "odd")[step % 2]
    plain_step(run, step)


@pytest.mark.parametrize("how", BY_BUCKET)
@pytest.mark.parametrize("step", [forked_step, same_fork_step])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_parameters_that_some_or_none_of_the_workers_use(size: int, step: Callable[..., None], how: str) -> None:
    """The weight decay would move a weight whose gradient is zero, and not one that has none."""
    assert_same_as_default(size, how, model=Forked, step=step)


@pytest.mark.parametrize("how", BY_BUCKET)
def test_a_worker_without_a_backward(how: str) -> None:
    def step(run: Run, number: int) -> None:
        run.replica.optimizer.zero_grad()
        if (run.rank + number) % 3:
            loss_of(run.model, batch_of(run.rank, number)).backward()
        run.step()

    assert_same_as_default(3, how, step=step)


@pytest.mark.parametrize("how", BY_BUCKET)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_add_up_before_a_step(how: str, set_to_none: bool) -> None:
    def step(run: Run, number: int) -> None:
        with run.accumulate():
            for part in range(2):
                loss_of(run.model, batch_of(run.rank, 10 * number + part)).backward()
        loss_of(run.model, batch_of(run.rank, 10 * number + 2)).backward()
        run.step()
        run.replica.optimizer.zero_grad(set_to_none)

    assert_same_as_default(2, how, step=step)


@pytest.mark.parametrize("how", BY_BUCKET)
def test_samples_that_change_from_step_to_step(how: str) -> None:
    def step(run: Run, number: int) -> None:
        run.samples = 1 + (3 * run.rank + number) % 5
        plain_step(run, number)

    assert_same_as_default(3, how, step=step)


@pytest.mark.parametrize("how", BY_BUCKET)
def test_parameters_beside_the_model(how: str) -> None:
    """What only the optimizer knows is complete behind backward, since anybody may use it; so are the gradients of what
    the optimizer does not know.
    """

    def work(comm: Comm, how: str) -> tuple[Tensor, list[Tensor | None]]:
        model, prompt = small_model(), nn.Parameter(torch.zeros(3, dtype=torch.float64))
        optimizer = torch.optim.SGD([prompt, *model[2].parameters()], lr=0.1, momentum=0.9)
        with set_up(comm, f"gradient-average(bucket=16B, {how})", model, lambda _: optimizer) as run:
            for step in range(3):
                inputs, targets = batch_of(comm.rank, step)
                loss_of(run.model, (inputs + prompt, targets)).backward()
                run.step()
                run.replica.optimizer.zero_grad()
        return torch.cat([prompt.detach(), weights(model)]), gradients(model[0])

    default = on_threads(2, lambda comm: work(comm, "update=whole"))
    for (found, unknown), (expected, theirs) in zip(on_threads(2, lambda c: work(c, how)), default, strict=True):
        assert torch.equal(found, expected)
        assert all(torch.equal(a, b) for a, b in zip(unknown, theirs, strict=True))


# --- what is refused, and what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", BY_BUCKET)
def test_a_scaler_is_refused_in_a_sentence(how: str) -> None:
    with set_up(World(1).comm(0), f"ddp({how})") as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        with pytest.raises(UserError, match=r"update=bucket steps before a GradScaler .*; use update=whole$"):
            run.step(torch.amp.GradScaler("cpu"))


def test_a_scaler_that_is_switched_off_is_none() -> None:
    with set_up(World(1).comm(0), "ddp(update=bucket)") as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        run.step(torch.amp.GradScaler("cpu", enabled=False))


class Foreign(torch.optim.SGD):
    """Not torch's own: it may look at all parameters at once."""


@pytest.mark.parametrize("how", BY_BUCKET)
def test_an_optimizer_from_elsewhere_is_refused_in_a_sentence(how: str) -> None:
    with pytest.raises(UserError, match=r"update=bucket steps on some .* and Foreign is none of torch's optimizers"):
        set_up(World(1).comm(0), f"ddp({how})", optimizer=lambda m: Foreign(m.parameters(), lr=0.1))
    with set_up(World(1).comm(0), "ddp", optimizer=lambda m: Foreign(m.parameters(), lr=0.1)) as run:
        train(run, range(1))


@pytest.mark.parametrize("how", BY_BUCKET)
def test_a_second_backward_in_one_step_is_refused_in_a_sentence(how: str) -> None:
    with set_up(World(1).comm(0), f"ddp({how})") as run:
        train(run, range(1))
        loss_of(run.model, batch_of(0, 1)).backward()
        with pytest.raises(UserError, match=r"its step in the backward before this one.* run.accumulate\(\)"):
            loss_of(run.model, batch_of(0, 1)).backward()
        run.step()
        train(run, range(2, 3))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"wait": "forward"}, "wait=forward needs update=bucket and overlap"),
        ({"wait": "forward", "update": "bucket", "overlap": False}, "wait=forward needs update=bucket and overlap"),
        ({"update": "bucket", "overlap": False}, "update=bucket needs overlap"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GradientAverage(**fields)


def survive(work: Callable[[Run], None]) -> Run:
    """`work` on the run of a worker whose only peer has gone while the exchange of a step was under way."""
    world = World(2, timeout=20.0)
    runs: list[Run] = []

    def victim() -> None:
        run = set_up(world.comm(1), "ddp(update=bucket, wait=forward)")
        train(run, range(1))
        run.state_dict()
        world.abort(1)
        run.close()

    def survivor() -> None:
        run = set_up(world.comm(0), "ddp(update=bucket, wait=forward)")
        runs.append(run)
        train(run, range(2))  # nobody waits for the second step's exchange

    threads = [threading.Thread(target=function) for function in (survivor, victim)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    (run,) = runs
    try:
        work(run)
    finally:
        with suppress(PeerLost):
            run.close()
    return run


def lanes() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("tutti-lane")}


def test_an_error_on_the_lane_comes_out_of_the_next_forward_and_stays() -> None:
    def work(run: Run) -> None:
        for _ in range(2):
            with pytest.raises(PeerLost, match="worker 1 died"):
                run.model(batch_of(0, 2)[0])
        with pytest.raises(PeerLost):
            run.state_dict()

    survive(work)


def test_an_error_on_the_lane_comes_out_of_the_state() -> None:
    def work(run: Run) -> None:
        with pytest.raises(PeerLost, match="worker 1 died"):
            run.state_dict()

    survive(work)


def test_an_error_on_the_lane_comes_out_of_close_and_nothing_is_left() -> None:
    before = lanes()

    def work(run: Run) -> None:
        with pytest.raises(PeerLost, match="worker 1 died"):
            run.close()
        run.close()  # once more does nothing

    run = survive(work)
    assert lanes() <= before
    run.replica.optimizer.step()  # the optimizer is the user's again


def test_an_error_on_the_lane_does_not_hide_the_users_own() -> None:
    before = lanes()

    def work(run: Run) -> None:
        with pytest.raises(KeyError, match="the user's own"), run:
            raise KeyError("the user's own")

    survive(work)
    assert lanes() <= before
