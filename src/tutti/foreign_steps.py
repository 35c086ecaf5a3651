"""While a run is open only the run steps on what its optimizers train: the order around the step is the algorithm.

A plain `optimizer.step()` is refused, with the optimizers of the run and with any other that has one of their
parameters (one made anew in mid-run, say). torch calls one function before the step of every optimizer of the process.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tutti.errors import UserError
from tutti.hooks import Hook
from tutti.optimizers import Optimizers

_claimed: dict[int, weakref.ref[Optimizers]] = {}  # by the number of a parameter


def claim(optimizers: Optimizers) -> None:
    """From here on these step on their parameters, as they are now, and nobody else."""
    reference = weakref.ref(optimizers)
    _claimed.update({id(parameter): reference for parameter in optimizers.parameters})


def let_go(optimizers: Optimizers) -> None:
    for parameter in optimizers.parameters:
        _claimed.pop(id(parameter), None)


def _refuse(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            reference = _claimed.get(id(parameter))
            owner = reference() if reference is not None else None
            if owner is None or not any(parameter is each for each in owner.parameters):
                continue  # nobody's, or of a run that is gone
            if optimizer not in owner.every:
                raise UserError(
                    "this optimizer has parameters that a run trains with another one; call run.step(), or close() the "
                    "run and distribute the model with this optimizer"
                )
            if owner.stepping:
                return
            raise UserError("call run.step() where optimizer.step() stood: the order around the step is the algorithm")


register_optimizer_step_pre_hook(Hook(_refuse))
