"""Gradients that an algorithm has stepped with already, while backward went on (`update=bucket`).

Whatever the loop does with them between `backward()` and `run.step()` (clipping, unscaling, noise, logging their norm)
would come too late and change nothing. So they can be set to zero or dropped, as `zero_grad()` does, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tutti.errors import UserError

_LOOKED_AT = ("grad_fn", "is_sparse", "device", "dtype", "layout", "shape", "requires_grad", "is_leaf")
_HARMLESS = {*(getattr(Tensor, name).__get__ for name in _LOOKED_AT), Tensor.requires_grad_, Tensor.detach_}
_ZEROING = {Tensor.zero_, torch._foreach_zero_}


class SpentGradient(Tensor):
    """The same memory as the gradient."""

    in_use: bool  # the exchange of it is still under way

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function not in _HARMLESS and not (function in _ZEROING and not _is_in_use(args[0])):
            raise UserError(
                "update=bucket has stepped with this gradient already, during backward: reading or changing it now "
                "(clipping, unscaling) comes too late; use update=whole"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def spend(gradient: Tensor, in_use: bool) -> Tensor:
    spent = gradient.as_subclass(SpentGradient)
    spent.in_use = in_use
    return spent


def _is_in_use(gradients: Any) -> bool:
    every = gradients if isinstance(gradients, list | tuple) else [gradients]
    return any(isinstance(each, SpentGradient) and each.in_use for each in every)
