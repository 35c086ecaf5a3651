"""Wrong arguments: one sentence each, and the model is as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_checks import alone
from torch import nn
from training import batch_of, loss_of, momentum, small_model

from tutti.comm.threads import World
from tutti.engine import Run, distribute
from tutti.errors import UserError


class FSDPLinear(nn.Linear):
    """As fully_shard makes it: one of its ancestors has this name."""


class FSDPModule:
    pass


class Sharded(FSDPModule, nn.Linear):
    pass


def meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(2, 2)


def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters())


WRONG: dict[str, tuple[Callable[[], tuple[Any, ...]], str]] = {
    "swapped": (lambda: (momentum(small_model()), small_model()), "the optimizer must be .*, not a Sequential: tutti"),
    "no algorithm": (lambda: (m := small_model(), momentum(m), None), "must be a spec such as 'ddp', not None"),
    "no optimizer": (lambda: (small_model(), []), "a run needs an optimizer, and the list is empty"),
    "a name": (lambda: (small_model(), "sgd"), "must be a torch.optim.Optimizer, or a list of them, not 'sgd'"),
    "no model": (lambda: (None, momentum(small_model())), "the model must be a torch.nn.Module, not None"),
    "lbfgs": (lambda: (m := small_model(), lbfgs(m)), "LBFGS evaluates the model as often as it likes"),
    "another model": (lambda: (small_model(), momentum(small_model())), "SGD has none of this model's parameters"),
    "meta": (lambda: (m := meta(), momentum(m)), "'weight' is on the meta device and has no values"),
    "data parallel": (lambda: (m := nn.DataParallel(small_model()), momentum(m)), "in DataParallel already; hand in"),
    "fsdp": (lambda: (m := Sharded(2, 2), momentum(m)), "sharded by FSDP"),
    "all frozen": (lambda: (m := nn.Linear(2, 2).requires_grad_(False), momentum(m)), "no parameter .* requires_grad"),
    "lazy": (lambda: (m := nn.Sequential(nn.LazyLinear(2)), momentum(m)), "'0.weight' is of a lazy module"),
    "nothing to train": (lambda: (nn.Tanh(), momentum(small_model())), "the model has no parameters"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_distribute_refuses(what: str) -> None:
    arguments, sentence = WRONG[what]
    with pytest.raises(UserError, match=sentence) as caught:
        distribute(*arguments(), comm=World(1).comm(0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("timeout", ["60", 0, -1.0, float("nan"), float("inf"), None, True])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    model = small_model()
    with pytest.raises(UserError, match=r"^timeout must be a number of seconds above 0 and at most .*, not "):
        distribute(model, momentum(model), timeout=timeout)


def closure() -> float:
    return 0.0


CALLS: dict[str, tuple[Callable[[Run], Any], str]] = {
    "samples": (lambda run: setattr(run, "samples", "8"), "run.samples must be a number, 0 or more, not '8'"),
    "mean": (lambda run: run.mean(None), r"run.mean\(\) takes a number or a tensor, not None"),
    "any": (lambda run: run.any("no"), r"run.any\(\) takes True or False, not 'no'"),
    "closure": (lambda run: run.step(closure), r"run.step\(\) takes no closure: call backward\(\) first"),
    "optimizer": (lambda run: run.step(run.replica.optimizer), r"takes a GradScaler first; .* run.step\(optimizer="),
    "number": (lambda run: run.step(3), r"takes a torch.amp.GradScaler or nothing, not an? int"),
}


@pytest.mark.parametrize("what", CALLS)
def test_what_a_run_refuses(what: str) -> None:
    call, sentence = CALLS[what]
    with alone() as run, pytest.raises(UserError, match=sentence):
        call(run)


AFTER: dict[str, Callable[[Run], Any]] = {
    "run.step()": lambda run: run.step(),
    "run.mean()": lambda run: run.mean(1.0),
    "run.sums()": lambda run: run.any(True),
    "run.consensus()": lambda run: run.consensus(),
    "run.consensus_distance()": lambda run: run.consensus_distance(),
    "run.consensus_state_dict()": lambda run: run.consensus_state_dict(),
    "run.state_dict()": lambda run: run.state_dict(),
    "run.load_state_dict()": lambda run: run.load_state_dict({}),
    "run.accumulate()": lambda run: run.accumulate(),
    "run.join()": lambda run: run.join(),
}


@pytest.mark.parametrize("call", AFTER)
def test_after_close(call: str) -> None:
    run = alone()
    run.close()
    with pytest.raises(UserError) as caught:
        AFTER[call](run)
    assert str(caught.value).startswith(f"{call} after run.close(): the run is over")
    loss_of(run.replica.model, batch_of(0, 0)).backward()  # the model is the user's again
    run.replica.optimizer.step()
