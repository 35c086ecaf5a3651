"""Every member of an axis as it is found in its folder, with every choice it offers."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from typing import Any, Literal

from tutti.spec import Member, member, names


def every(base: type[Member]) -> list[str]:
    """Specs of all members; fields with named choices, and parts from other axes, take every value there is."""
    return [spec for name in names(base.axis) for spec in _variants(name, member(base, name))]


def _variants(name: str, cls: type[Member]) -> list[str]:
    hints = typing.get_type_hints(cls)
    choices = {f.name: _choices(hints[f.name], cls.axis) for f in dataclasses.fields(cls) if f.init}
    choices = {field: values for field, values in choices.items() if values}
    return [_write(name, dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]


def _choices(kind: Any, axis: str) -> list[str]:
    if typing.get_origin(kind) is Literal:
        return list(typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Member) and kind.axis != axis:
        return every(kind)
    return []


def _write(name: str, values: dict[str, str]) -> str:
    return f"{name}({', '.join(f'{field}={value}' for field, value in values.items())})" if values else name
