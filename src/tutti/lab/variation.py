"""Parameters by their names, wherever they are: of a plan (`lr`, `momentum`), or of an algorithm, at any depth.

mu                the field of the algorithm, or of the part of it that has one: the outermost counts
exchange.rule     the same with the way to it
relay-sgd on X    the algorithm with its `topology` replaced by X
"""

from __future__ import annotations

import dataclasses
import re
import typing
import zlib
from functools import cache
from typing import Any

from tutti.algorithms.base import Algorithm
from tutti.errors import UserError
from tutti.spec import Member, fields_of, hints_of, parse, parse_quantity, unwrap
from tutti.train import Plan

_ON = " on "
_SLUG = 32  # letters of a file's name that one label may take


def read_algorithm(text: str) -> str:
    """The spec of what is written `ALGORITHM` or `ALGORITHM on TOPOLOGY`."""
    spec, _, topology = text.partition(_ON)
    algorithm = parse(spec.strip(), Algorithm)
    return str(change_member(algorithm, "topology", topology.strip()) if topology else algorithm)


def change(spec: str, plan: Plan, name: str, text: str) -> tuple[str, Plan]:
    """Both with one parameter replaced, whichever of them has it; the plan comes first."""
    field = name.replace("-", "_")
    if field in _kinds():
        return spec, dataclasses.replace(plan, **{field: parse_quantity(text, _kinds()[field], name)})
    return str(change_member(parse(spec, Algorithm), name, text)), plan


@cache
def _kinds() -> dict[str, Any]:
    """Of a plan's fields."""
    return typing.get_type_hints(Plan, include_extras=True)


def change_member(member: Algorithm, name: str, text: str) -> Algorithm:
    path = _find(member, name.replace("-", "_").split("."))
    if path is None:
        raise UserError(f"'{member}' has no parameter '{name}'; there is {', '.join(_list(member))}")
    changed: Algorithm = _replace(member, path, text)
    return changed


def has_parameter(spec: str, name: str) -> bool:
    return _find(parse(spec, Algorithm), [name]) is not None


def _find(member: Member, path: list[str]) -> list[str] | None:
    """The whole way to where `path` begins; the outermost is found first, then from left to right."""
    layer: list[tuple[list[str], Member]] = [([], member)]
    while layer:
        for before, each in layer:
            if _has(each, path):
                return [*before, *path]
        layer = [([*before, name], part) for before, each in layer for name, part in each.members().items()]
    return None


def _has(member: Member, path: list[str]) -> bool:
    if len(path) > 1:
        part = member.members().get(path[0])
        return part is not None and _has(part, path[1:])
    return path[0] in [field.name for field in fields_of(type(member))]


def _replace(member: Any, path: list[str], text: str) -> Any:
    name, *rest = path
    if rest:
        return dataclasses.replace(member, **{name: _replace(getattr(member, name), rest, text)})
    kind = hints_of(type(member))[name]
    inner = unwrap(kind)[0]
    is_member = isinstance(inner, type) and issubclass(inner, Member)
    value = parse(text, inner) if is_member else parse_quantity(text, kind, name.replace("_", "-"))
    return dataclasses.replace(member, **{name: value})


def _list(member: Member, before: str = "") -> list[str]:
    """Every parameter, with the way to it."""
    found = []
    for field in fields_of(type(member)):
        name = f"{before}{field.name.replace('_', '-')}"
        part = getattr(member, field.name)
        found += [name, *(_list(part, f"{name}.") if isinstance(part, Member) else [])]
    return found


def make_slug(text: str) -> str:
    """A label as a part of a file's name; what is long ends in a checksum."""
    slug = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    if len(slug) <= _SLUG:
        return slug
    return f"{slug[: _SLUG - 9]}-{zlib.crc32(text.encode()):08x}"


def split_list(text: str) -> list[str]:
    """At the commas, but not at those within parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
