"""With `update=bucket` gradients are spent when backward returns: only dropping them is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from training import batch_of, joint_batch, loss_of, set_up, small_model, train_alone, weights
from training import momentum as momentum_of
from workers import on_threads

from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.engine import Run
from tutti.errors import UserError

SPECS = ["ddp(update=bucket)", "ddp(update=bucket, wait=forward)", "model-average(update=bucket)"]
USES: dict[str, Callable[[Run], Any]] = {
    "clip by norm": lambda run: nn.utils.clip_grad_norm_(run.replica.model.parameters(), 1.0),
    "clip by value": lambda run: nn.utils.clip_grad_value_(run.replica.model.parameters(), 1.0),
    "scale": lambda run: next(run.replica.model.parameters()).grad.mul_(0.5),
    "read a number": lambda run: float(next(run.replica.model.parameters()).grad.norm()),
    "copy": lambda run: [p.grad.clone() for p in run.replica.model.parameters()],
    "through .data": lambda run: next(run.replica.model.parameters()).grad.data,
    "unscale": lambda run: torch.amp.GradScaler("cpu").unscale_(run.replica.optimizer),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("spec", SPECS)
def test_what_comes_too_late_is_refused(spec: str, use: str) -> None:
    with set_up(World(1).comm(0), spec) as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        if use == "unscale":
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(1))
            with pytest.raises(UserError, match="comes too late; use update=whole"):
                scaler.unscale_(run.replica.optimizer)
            return
        with pytest.raises(UserError, match="comes too late; use update=whole"):
            USES[use](run)


@pytest.mark.parametrize("how", ["to none", "to zero", "one by one", "model", "not at all"])
@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2]])
def test_gradients_may_be_dropped_before_or_after_the_step(spec: str, how: str) -> None:
    def work(comm: Comm) -> torch.Tensor:
        with set_up(comm, spec) as run:
            for step in range(3):
                loss_of(run.model, batch_of(comm.rank, step)).backward()
                if how == "to zero":
                    run.replica.optimizer.zero_grad(set_to_none=False)
                if how == "model":
                    run.model.zero_grad(set_to_none=False)
                run.step()
                if how == "to none":
                    run.replica.optimizer.zero_grad()
                if how == "one by one":
                    for parameter in run.model.parameters():
                        parameter.grad.zero_()
                if how == "not at all":
                    assert all(type(p.grad) is torch.Tensor and p.grad.norm() >= 0 for p in run.model.parameters())
                    run.replica.optimizer.zero_grad()
            return weights(run.model)

    plain = small_model()
    train_alone(plain, momentum_of(plain), [joint_batch(2, step) for step in range(3)])
    for found in on_threads(2, work):
        torch.testing.assert_close(found, weights(plain), rtol=1e-12, atol=0)


def test_what_is_still_under_way_cannot_be_zeroed() -> None:
    with set_up(World(1).comm(0), SPECS[1]) as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        with pytest.raises(UserError, match="comes too late"):
            run.model.zero_grad(set_to_none=False)
        run.step()


@pytest.mark.parametrize("spec", ["ddp", "model-average", "d-psgd"])
def test_otherwise_gradients_are_the_loops(spec: str) -> None:
    with set_up(World(1).comm(0), spec) as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 1e-9)
        assert all(type(p.grad) is torch.Tensor for p in run.model.parameters())
        run.step()


def test_after_close_they_are_plain() -> None:
    run = set_up(World(1).comm(0), SPECS[0])
    loss_of(run.model, batch_of(0, 0)).backward()
    run.close()
    assert all(type(p.grad) is torch.Tensor for p in run.replica.model.parameters())
