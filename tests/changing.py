"""Loops in which what is trained changes on the way, and the same loops on one worker; importable, for processes."""

# ruff: noqa: ARG001 (changes share one signature)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from training import batch_of, joint_batch, loss_of, momentum, seeded, small_model, weights

from tutti.comm.base import Comm
from tutti.engine import distribute
from tutti.launch import Report

BEFORE, STEPS = 3, 6  # the change comes in front of step 3


def add_group(model: nn.Sequential, optimizer: torch.optim.Optimizer, rank: int) -> None:
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.2})


def swap_head(model: nn.Sequential, optimizer: torch.optim.Optimizer, rank: int) -> None:
    with seeded(100 + rank):  # all workers get that of worker 0
        model[2] = nn.Linear(4, 2).double()
    optimizer.add_param_group({"params": list(model[2].parameters())})


def unfreeze(model: nn.Sequential, optimizer: torch.optim.Optimizer, rank: int) -> None:
    model[0].requires_grad_(True)


def freeze(model: nn.Sequential, optimizer: torch.optim.Optimizer, rank: int) -> None:
    model[0].requires_grad_(False)
    model.zero_grad()


def shrink(model: nn.Sequential, optimizer: torch.optim.Optimizer, rank: int) -> None:
    vector_to_parameters(parameters_to_vector(model.parameters()).detach() * 0.5, model.parameters())


def to_and_fro(model: nn.Sequential, optimizer: torch.optim.Optimizer, rank: int) -> None:
    model.float().double()


def to_other_type(model: nn.Sequential, optimizer: torch.optim.Optimizer, rank: int) -> None:
    model.float()


def nothing_trained(model: nn.Sequential, optimizer: torch.optim.Optimizer, rank: int) -> None:
    model[0].requires_grad_(True)  # and what was trained before gets no gradient any more
    model[2].requires_grad_(False)


Change = Callable[[nn.Sequential, torch.optim.Optimizer, int], None]
CHANGES: dict[str, Change] = {
    "a parameter group is added": add_group,
    "the head is swapped": swap_head,
    "layers are unfrozen": unfreeze,
    "layers are frozen": freeze,
    "vector_to_parameters": shrink,
    "there and back to another type": to_and_fro,
    "another type": to_other_type,
    "all that was trained is frozen and the rest unfrozen": nothing_trained,
}


def begin(change: Change) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = small_model()
    if change in (unfreeze, nothing_trained):
        model[0].requires_grad_(False)
    return model, momentum(model[0] if change is add_group else model)


def learn(
    model: nn.Sequential,
    optimizer: torch.optim.Optimizer,
    change: Change,
    batch: Callable[[int], Any],
    step: Callable[[], Any],
    rank: int = 0,
    late: bool = False,
) -> Tensor:
    """`late`: the change comes between a backward and the step."""
    for number in range(STEPS):
        if number == BEFORE and not late:
            change(model, optimizer, rank)
        optimizer.zero_grad()
        inputs, targets = batch(number)
        dtype = model[0].weight.dtype
        loss_of(model, (inputs.to(dtype), targets.to(dtype))).backward()
        if number == BEFORE and late:
            change(model, optimizer, rank)
        step()
        model.zero_grad()
    return weights(model)


def changed(comm: Comm, spec: str, name: str, late: bool = False) -> Tensor:
    model, optimizer = begin(CHANGES[name])
    with distribute(model, optimizer, spec, comm=comm) as run:
        learn(model, optimizer, CHANGES[name], lambda n: batch_of(run.rank, n), run.step, run.rank, late)
        model.state_dict()  # which waits for what is under way
        return weights(model)


def changed_alone(size: int, name: str, late: bool = False) -> Tensor:
    model, optimizer = begin(CHANGES[name])
    return learn(model, optimizer, CHANGES[name], lambda n: joint_batch(size, n), optimizer.step, late=late)


def change_all(comm: Comm, _: Report, specs: tuple[str, ...]) -> list[tuple[str, str, list[bytes]]]:
    """Every change with each of these, over real processes; everybody's weights."""
    return [
        (spec, name, comm.gather_bytes(changed(comm.fork(f"{spec} {name}"), spec, name).numpy().tobytes()))
        for spec in specs
        for name in CHANGES
    ]
