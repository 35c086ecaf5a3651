"""Which parameters a run trains, and whether that is still what it was set up for.

A script may add a parameter group, swap a head, unfreeze layers, or give parameters other memory (`p.data = ...`,
`model.to(dtype)`, `vector_to_parameters`) at any time. `Parameters.find_change` is asked at every forward, backward and
step; it compares addresses and shapes and looks at no data.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from tutti.errors import UserError
from tutti.optimizers import Optimizers

Place = tuple[int, torch.Size, tuple[int, ...]]  # of a parameter's values: address, shape, strides


class Change(NamedTuple):
    """What is no more as it was; false if nothing is."""

    what: str = ""
    moved: bool = False  # a parameter has other memory, whatever values are there

    def __bool__(self) -> bool:
        return bool(self.what)


class Parameters:
    """Of one model and its optimizers."""

    def __init__(self, model: nn.Module, optimizers: Optimizers) -> None:
        self._model, self._optimizers = model, optimizers
        self._trained: dict[nn.Parameter, str] = {}  # all that ever were, in their order, with their names
        self._numbers: set[int] = set()  # the same by `id`, which is faster to look up than a tensor
        self._places: list[Place] = []
        self._groups: list[list[int]] = []

    def collect(self) -> dict[nn.Parameter, str]:
        """All that are trained now or were before, with their names: first the model's, then those that only an
        optimizer knows. One that is frozen for a while stays."""
        named = {p: name for name, p in self._model.named_parameters()}
        every = {**named, **{p: named.get(p, "") for p in self._optimizers.parameters}}
        found = {p: name for p, name in every.items() if p.requires_grad or p in self._trained}
        _refuse_overlap(found)
        self._trained = found
        return found

    def check_optimizers(self) -> None:
        """A model whose parameters were all replaced would not be trained any more."""
        present = {id(p) for p in self._model.parameters()}
        if not any(id(p) in present for p in self._optimizers.parameters):
            raise UserError(
                "the optimizer has none of the model's parameters any more (were they replaced, by load_state_dict("
                "assign=True) for instance?); close() the run and distribute the model with an optimizer made from it"
            )

    def settle(self) -> None:
        """The run is set up for what was collected, where it lies now, and for the groups as they are."""
        self._numbers = set(map(id, self._trained))
        self._places, self._groups = self._list_places(), self._list_groups()

    def trained(self) -> list[nn.Parameter]:
        return list(self._trained)

    def names(self) -> list[str]:
        """In their order; nothing for those that only an optimizer knows."""
        return list(self._trained.values())

    def find_change(self) -> Change:
        if self._list_places() != self._places:
            return Change(f"'{self._find_moved()}' has other memory", moved=True)
        if self._list_groups() != self._groups:
            return Change("the optimizer has other parameters")
        for parameter in _walk(self._model):
            if id(parameter) in self._numbers or not parameter.requires_grad:
                continue
            if isinstance(parameter, nn.Parameter):  # else inside torch.func.functional_call, for this forward only
                return Change(f"'{self._name(parameter)}' is new, or was frozen")
        return Change()

    def _list_places(self) -> list[Place]:
        return [(p.data_ptr(), p.shape, p.stride()) for p in self._trained]

    def _find_moved(self) -> str:
        names = zip(self._trained.values(), self._list_places(), self._places, strict=True)
        return next(name for name, here, there in names if here != there)

    def _list_groups(self) -> list[list[int]]:
        return [[id(p) for p in group["params"]] for group in self._optimizers.groups]

    def _name(self, parameter: nn.Parameter) -> str:
        return next((name for name, p in self._model.named_parameters() if p is parameter), "")


def _refuse_overlap(named: dict[nn.Parameter, str]) -> None:
    """In buckets every parameter has memory of its own."""
    places = sorted((p.data_ptr(), p.data_ptr() + _span(p), name) for p, name in named.items() if p.numel())
    for (_, end, one), (begin, _, other) in pairwise(places):
        if begin < end:
            raise UserError(
                f"'{one}' and '{other}' are two parameters in the same memory, and would each get their own; tie them "
                "by using one parameter in both places"
            )


def _span(parameter: nn.Parameter) -> int:
    """Bytes from its first element to the end of its last."""
    reach = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    return (reach + 1) * parameter.element_size()


def _walk(module: nn.Module) -> Iterator[Any]:
    """All parameters, without names, which is many times as fast as `parameters()`."""
    waiting = [module]
    while waiting:
        inside = waiting.pop().__dict__  # past nn.Module's own, slow look-up
        for parameter in inside["_parameters"].values():
            if parameter is not None:
                yield parameter
        waiting.extend(child for child in inside["_modules"].values() if child is not None)
