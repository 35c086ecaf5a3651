"""What `distribute` and a `Run` may be handed: everything else is refused in a sentence, before anything is set up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from tutti.algorithms.base import Algorithm
from tutti.errors import UserError
from tutti.spec import parse

_ORDER = "tutti.distribute(model, optimizer, algorithm)"


def read_algorithm(algorithm: Any) -> Algorithm:
    if isinstance(algorithm, str):
        return parse(algorithm, Algorithm)
    if not isinstance(algorithm, Algorithm):
        raise UserError(f"the algorithm must be a spec such as 'ddp', not {_describe(algorithm)}: {_ORDER}")
    return algorithm


def read_optimizers(optimizers: Any) -> list[torch.optim.Optimizer]:
    every = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
    for each in every:
        if not isinstance(each, torch.optim.Optimizer):
            raise UserError(
                f"the optimizer must be a torch.optim.Optimizer, or a list of them, not {_describe(each)}: {_ORDER}"
            )
        if isinstance(each, torch.optim.LBFGS):
            raise UserError(
                "LBFGS evaluates the model as often as it likes in one step, on every worker as often as that one "
                "likes; take an optimizer that steps once, such as SGD or AdamW"
            )
    if not every:
        raise UserError(f"a run needs an optimizer, and the list is empty: {_ORDER}")
    return every


def check_model(model: Any, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Whether it is a plain module that these optimizers train."""
    if not isinstance(model, nn.Module):
        raise UserError(f"the model must be a torch.nn.Module, not {_describe(model)}: {_ORDER}")
    _check_wrappers(model)
    parameters = dict.fromkeys(model.parameters())
    if not parameters:
        raise UserError("the model has no parameters: there is nothing to train")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UserError(f"'{name}' is of a lazy module and has no shape yet; call the model once before")
        if parameter.is_meta:
            raise UserError(f"'{name}' is on the meta device and has no values; materialise it first: to_empty()")
    if not any(p.requires_grad for each in optimizers for group in each.param_groups for p in group["params"]):
        raise UserError("no parameter of the optimizer has requires_grad: there is nothing to train")
    for each in optimizers:
        if not any(p in parameters for group in each.param_groups for p in group["params"]):
            raise UserError(
                f"{type(each).__name__} has none of this model's parameters; make it from the parameters of the model "
                "that is distributed"
            )
    _check_shared([p for each in optimizers for group in each.param_groups for p in group["params"]])


def _check_wrappers(model: nn.Module) -> None:
    for module in model.modules():
        kind = type(module)
        if isinstance(module, DistributedDataParallel | DataParallel):
            raise UserError(f"the model is wrapped in {kind.__name__} already; hand in its .module")
        if kind.__name__ == "FullyShardedDataParallel" or any(k.__name__ == "FSDPModule" for k in kind.__mro__):
            raise UserError("the model is sharded by FSDP, which exchanges gradients by itself; hand in a plain model")
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise UserError("the model has DTensor parameters, which are spread over workers; hand in a plain model")


def _check_shared(parameters: list[nn.Parameter]) -> None:
    if len(set(parameters)) < len(parameters):
        raise UserError("a parameter is in two optimizers or groups, and would be stepped twice")


def check_samples(count: Any) -> float:
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count < math.inf:
        raise UserError(f"run.samples must be a number, 0 or more, not {count!r}")
    return float(count)


def check_number(value: Any, what: str) -> float | Tensor:
    if isinstance(value, bool | int | float | Tensor):
        return value
    raise UserError(f"{what} takes a number or a tensor, not {_describe(value)}")


def check_flag(value: Any, what: str) -> float:
    if isinstance(value, bool | int | float) or (isinstance(value, Tensor) and value.numel() == 1):
        return float(value)
    raise UserError(f"{what} takes True or False, not {_describe(value)}")


def check_scaler(scaler: Any) -> None:
    if scaler is None or isinstance(scaler, torch.amp.GradScaler):
        return
    if isinstance(scaler, torch.optim.Optimizer):
        raise UserError(
            "run.step() takes a GradScaler first; to step with one optimizer of several: run.step(optimizer=…)"
        )
    if callable(scaler):
        raise UserError(
            "run.step() takes no closure: call backward() first, which exchanges the gradients, and then run.step()"
        )
    raise UserError(f"run.step() takes a torch.amp.GradScaler or nothing, not {_describe(scaler)}")


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"'{value[:40]}'"
    return f"{'an' if type(value).__name__[0] in 'AEIOU' else 'a'} {type(value).__name__}"
