"""Whether data from a file is what a type says: numbers, texts, lists, dictionaries, unions and TypedDicts of them.

A TypedDict says by `Required` which keys must be there. Keys that it does not have are passed over: a later version may
have written more. `find_fault` names the first wrong place: "measurements[2].seconds[7] is a text, not a number".
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NotRequired, Required, TypeAlias, Union

_NAMES = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", dict: "an object"}
_NAMES |= {list: "a list", type(None): "null"}
_LARGEST = 1 << 62  # of whole numbers: one of thousands of digits is no measurement

Checker: TypeAlias = Callable[[Any, str], str]


@dataclass(frozen=True)
class Bounds:
    """Of a number, both included; a number without bounds may also be infinite or none."""

    least: float
    most: float


Amount = Annotated[float, Bounds(0, 1e15)]
Number = Annotated[float, Bounds(-1e15, 1e15)]
Count = Annotated[int, Bounds(0, 1e15)]


def find_fault(value: Any, kind: Any, where: str = "") -> str:
    """The first place that is wrong, as a part of a sentence; empty where all is right."""
    return _make(kind)(value, where)


@cache
def _make(kind: Any) -> Checker:
    """The function that checks a kind, made once for many values."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda *_: ""
    if origin is Annotated:
        return _make_bounded(args[0], args[1])
    if origin in (Required, NotRequired):
        return _make(args[0])
    if origin in (Union, types.UnionType):
        return _make_union(args)
    if origin is list:
        return _make_list(args[0])
    if typing.is_typeddict(kind):
        return _make_object(kind)
    if origin is dict:
        return _make_dict(args[1])
    return _make_plain(kind)


def _make_plain(kind: type) -> Checker:
    def check(value: Any, where: str) -> str:
        good = type(value) is kind or (kind is float and type(value) is int)
        if not good:
            return f"{where} is {_name(value)}, not {_NAMES[kind]}"
        return f"{where} is too large" if type(value) is int and abs(value) > _LARGEST else ""

    return check


def _make_bounded(kind: type, bounds: Bounds) -> Checker:
    plain = _make(kind)

    def check(value: Any, where: str) -> str:
        fault = plain(value, where)
        if fault or bounds.least <= value <= bounds.most:
            return fault
        shown = value if math.isfinite(value) else "not finite"
        return f"{where} is {shown}, not between {bounds.least:g} and {bounds.most:g}"

    return check


def _make_union(kinds: tuple[Any, ...]) -> Checker:
    """Null and one other kind, or several of which the first that has the right type says what is wrong."""
    checkers = [_make(kind) for kind in kinds if kind is not type(None)]
    empty = type(None) in kinds

    def check(value: Any, where: str) -> str:
        if value is None and empty:
            return ""
        faults = [checker(value, where) for checker in checkers]
        return "" if "" in faults else faults[0]

    return check


def _make_list(kind: Any) -> Checker:
    each = _make(kind)

    def check(value: Any, where: str) -> str:
        if type(value) is not list:
            return f"{where} is {_name(value)}, not a list"
        for index, entry in enumerate(value):
            if each(entry, where):
                return each(entry, f"{where}[{index}]")
        return ""

    return check


def _make_dict(kind: Any) -> Checker:
    each = _make(kind)

    def check(value: Any, where: str) -> str:
        if type(value) is not dict:
            return f"{where} is {_name(value)}, not an object"
        return next((fault for key, entry in value.items() if (fault := each(entry, _join(where, key)))), "")

    return check


def _make_object(kind: Any) -> Checker:
    hints = typing.get_type_hints(kind, include_extras=True)
    checkers = {key: _make(hint) for key, hint in hints.items()}
    # __required_keys__ does not know what is written in annotations that are texts
    required = {key for key, hint in hints.items() if typing.get_origin(hint) is Required}

    def check(value: Any, where: str) -> str:
        if type(value) is not dict:
            return f"{where or 'the whole'} is {_name(value)}, not an object"
        for key, checker in checkers.items():
            if key not in value:
                if key in required:
                    return f"{_join(where, key)} is missing"
            elif fault := checker(value[key], _join(where, key)):
                return fault
        return ""

    return check


def _join(where: str, key: str) -> str:
    return f"{where}.{key[:60]}" if where else key[:60]


def _name(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__)
