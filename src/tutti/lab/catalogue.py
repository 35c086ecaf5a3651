"""The catalogue: every member of every axis, read from its source, so that nothing is written down twice.

The words are the docstring of the member's module (docs/adding.md says what it must hold), the parameters are the
fields of its dataclass, the traits are what its class says of itself, and what a route costs is computed by its `cost`.
Members are made but never set to work: no data is loaded and nothing is sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import pkgutil
import types
import typing
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Union

import tutti
from tutti.collectives.base import Collective
from tutti.errors import UserError, suggest
from tutti.lab.docstrings import read_words
from tutti.spec import (
    Member,
    Range,
    Shape,
    Unit,
    fields_of,
    format_value,
    hints_of,
    names,
    parse,
    parts_of,
    presets_of,
    unwrap,
)

PRESETS_AXIS = "presets"
_ORDER = (
    "algorithms",
    PRESETS_AXIS,
    "exchanges",
    "collectives",
    "topologies",
    "aggregators",
    "models",
    "tasks",
    "partitions",
    "networks",
)

WORKERS = (2, 4, 8)  # what a route costs is shown for these
PRICE_HEADERS = ("route", "rounds", "busiest link", "total")
PRICES = f"for {', '.join(map(str, WORKERS))} workers; bytes as multiples of S, the size of the buffer"
_S = 840 * 64  # a buffer that every small number of workers can share evenly, and that goes in one piece

# What a trait means to a reader; where there is nothing to say, nothing is said. {} takes a value that is a word.
TRAITS: Mapping[str, Mapping[Any, str] | str] = {
    "meets": {
        True: "whole contributions meet: any aggregator works",
        False: "only partial sums travel: linear aggregators work",
    },
    "linear": {
        True: "linear: works on every route",
        False: "not linear: works on routes where whole contributions meet",
    },
    "normalised": {True: "", False: "not normalised: the result grows with the number of workers"},
    "by_layer": {True: "combined tensor by tensor", False: ""},
    "one_worker": {True: "runs on one worker, with the whole batch", False: ""},
    "by_backend": {True: "its messages are the backend's own and do not pass our wire", False: ""},
    "needs_process_group": {True: "needs the backend's process group, whatever the wire", False: ""},
    "buffers": {
        "broadcast": "buffers, such as batch norm's running mean: worker 0's are sent to all",
        "average": "buffers, such as batch norm's running mean, are averaged",
        "local": "buffers, such as batch norm's running mean, are left alone",
    },
    "equal": {True: "", False: "workers hold different weights; their mean is what is evaluated"},
    "same_steps": {True: "", False: ""},
    "no_join": "no run.join(): {}",
    "exact": {True: "", False: "workers end with different buffers: for averaging models, not gradients"},
    "tolerates_loss": {True: "goes on without a message that is lost", False: ""},
    "deterministic": {True: "", False: "not deterministic: the same run twice may give other bits"},
    "directed": {True: "directed: a worker may send to one that does not send back", False: ""},
    "changing": {True: "changing: other peers from step to step", False: ""},
    "even": {True: "shares are equal: they differ by one sample at most", False: "shares differ in size"},
    "default_model": "trained with {} where no model is named",
    "hosts": {True: "every worker gets a host of its own", False: "all workers share the machine"},
}


@dataclass(frozen=True)
class Parameter:
    """A field as it is typed in a spec."""

    name: str
    kind: str
    default: str


@dataclass(frozen=True)
class Price:
    """What a route costs over so many workers; bytes as multiples of the buffer's size S."""

    spec: str
    workers: int
    rounds: int
    busiest: float
    total: float


@dataclass(frozen=True)
class Page:
    """All there is to say about one member. Blocks of `text` are parted by empty lines; indented ones are the rule."""

    axis: str
    noun: str
    name: str
    spec: str
    summary: str
    text: str = ""
    rule: str = ""
    papers: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    prices: tuple[Price, ...] = ()
    file: str = ""


@dataclass(frozen=True)
class Chapter:
    """One axis; `parts` says where its members stand inside others, as in `route of all-reduce`."""

    axis: str
    summary: str
    pages: tuple[Page, ...]
    parts: tuple[str, ...] = ()


# --- axes ------------------------------------------------------------------------------------------------------------


def find_axes() -> list[type[Member]]:
    """The base class of every folder that is an axis: the well-known ones in their order, then any other."""
    folders = [info.name for info in pkgutil.iter_modules(tutti.__path__) if info.ispkg]
    bases = [base for folder in folders for base in _bases_in(folder)]
    return sorted(bases, key=lambda base: (_place(base.axis), base.axis))


def _bases_in(folder: str) -> list[type[Member]]:
    name = f"tutti.{folder}.base"
    if importlib.util.find_spec(name) is None:
        return []
    classes = [each for each in vars(importlib.import_module(name)).values() if isinstance(each, type)]
    members = [each for each in classes if issubclass(each, Member) and Member in each.__bases__]
    return [each for each in members if each.__module__ == name and each.axis == folder]


def _place(axis: str) -> int:
    return _ORDER.index(axis) if axis in _ORDER else len(_ORDER)


def read_catalogue() -> list[Chapter]:
    """Everything there is."""
    chapters = [read_chapter(base) for base in find_axes()]
    chapters = [dataclasses.replace(chapter, parts=_parts(chapter.axis, chapters)) for chapter in chapters]
    return sorted([*chapters, _read_presets()], key=lambda chapter: _place(chapter.axis))


def read_chapter(base: type[Member]) -> Chapter:
    contract = read_words(base.__module__).summary
    said = contract.partition(": ")[2] or contract
    pages = tuple(read_page(parse(name, base)) for name in names(base.axis))
    return Chapter(base.axis, said[0].upper() + said[1:], pages)


def _parts(axis: str, chapters: list[Chapter]) -> tuple[str, ...]:
    owners: dict[str, list[str]] = {}
    for page in (page for chapter in chapters for page in chapter.pages):
        for each in page.parameters:
            if each.kind.startswith(_part_from(axis)):
                owners.setdefault(each.name, []).append(page.name)
    return tuple(f"{name} of {' or '.join(members)}" for name, members in owners.items())


def _read_presets() -> Chapter:
    pages = tuple(
        _read_preset(name, spec, base) for base in find_axes() for name, spec in presets_of(base.axis).items()
    )
    return Chapter(PRESETS_AXIS, read_words("tutti.presets").text, pages)


def _read_preset(name: str, spec: str, base: type[Member]) -> Page:
    words = read_words(type(parse(spec, base)).__module__)
    return Page(PRESETS_AXIS, "preset", name, spec, words.summary, papers=words.papers, file="presets.py")


def select(chapters: list[Chapter], wanted: str) -> list[Chapter]:
    """The axis of this name with its presets, or every member of this name on any axis."""
    if any(chapter.axis == wanted for chapter in chapters):
        return [
            *(chapter for chapter in chapters if chapter.axis == wanted),
            *_only([chapter for chapter in chapters if chapter.axis == PRESETS_AXIS], presets_of(wanted)),
        ]
    if parts := _only(chapters, [wanted]):
        return parts
    axes, members = [chapter.axis for chapter in chapters], [page.name for c in chapters for page in c.pages]
    advice = suggest(wanted, [*axes, *members], f"the axes are {', '.join(axes)}")
    raise UserError(f"there is no axis or member '{wanted}'{advice}")


def _only(chapters: list[Chapter], wanted: Container[str]) -> list[Chapter]:
    """The members of these names."""
    held = [(chapter, tuple(page for page in chapter.pages if page.name in wanted)) for chapter in chapters]
    return [dataclasses.replace(chapter, pages=pages) for chapter, pages in held if pages]


# --- one member ------------------------------------------------------------------------------------------------------


def read_page(member: Member) -> Page:
    words = read_words(type(member).__module__)
    variants = _variants(member)
    return Page(
        member.axis,
        member.noun,
        member.name,
        str(member),
        words.summary,
        words.text,
        words.rule,
        words.papers,
        traits=_read_traits(variants),
        parameters=_read_parameters(member),
        prices=tuple(_price(each, workers) for each in variants if isinstance(each, Collective) for workers in WORKERS),
        file=f"{member.axis}/{member.name.replace('-', '_')}.py",
    )


def _variants(member: Member) -> list[Member]:
    """The member as it is, and with every other choice of a field that names its choices."""
    kinds, found = hints_of(type(member)), [member]
    for field in fields_of(type(member)):
        for choice in _choices(kinds[field.name]):
            if choice != getattr(member, field.name):
                with contextlib.suppress(ValueError):  # it goes with another choice of another field only
                    found.append(dataclasses.replace(member, **{field.name: choice}))
    return found


def _choices(kind: Any) -> tuple[Any, ...]:
    """The words of a Literal, alone or beside another kind."""
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else ()
    return tuple(word for each in kinds for word in _choices(each))


def _price(route: Collective, workers: int) -> Price:
    cost = route.cost(workers, _S)
    return Price(str(route), workers, cost.rounds, cost.busiest / _S, cost.total / _S)


def tabulate(prices: Iterable[Price]) -> list[tuple[str, str, str, str]]:
    """A row per spec: its rounds, the busiest link's bytes and all bytes, for all numbers of workers side by side."""
    rows: dict[str, list[Price]] = {}
    for price in prices:
        rows.setdefault(price.spec, []).append(price)
    return [
        (
            spec,
            ", ".join(str(price.rounds) for price in row),
            ", ".join(f"{price.busiest:.3g}" for price in row),
            ", ".join(f"{price.total:.3g}" for price in row),
        )
        for spec, row in rows.items()
    ]


def _read_parameters(member: Member) -> tuple[Parameter, ...]:
    kinds = hints_of(type(member))
    return tuple(
        Parameter(
            field.name.replace("_", "-"),
            describe_kind(kinds[field.name]),
            format_value(getattr(member, field.name), kinds[field.name]),
        )
        for field in fields_of(type(member))
    )


# --- traits ----------------------------------------------------------------------------------------------------------


def find_traits(base: type[Member]) -> list[str]:
    """What an axis lets its members say of themselves: public class attributes that are a word or a yes or no."""
    hints = {name: hint for name, hint in hints_of(base).items() if typing.get_origin(hint) is ClassVar}
    said = {name: typing.get_args(hint)[0] for name, hint in hints.items() if name not in ("axis", "noun", "example")}
    return [name for name, kind in said.items() if kind in (bool, str) or typing.get_origin(kind) is Literal]


def _read_traits(variants: list[Member]) -> tuple[str, ...]:
    """A sentence per trait; where the variants differ, one for each value, with the specs it holds for."""
    found = []
    for trait in find_traits(type(variants[0])):
        specs: dict[str, list[str]] = {}
        for each in variants:
            specs.setdefault(_say(trait, getattr(each, trait, None)), []).append(str(each))
        found += [f"{said} ({', '.join(which)})" if len(specs) > 1 else said for said, which in specs.items() if said]
    return tuple(found)


def _say(trait: str, value: Any) -> str:
    words = TRAITS.get(trait, f"{trait.replace('_', ' ')}: {{}}")
    if isinstance(words, str):
        return words.format(value) if value else ""
    return words.get(value, f"{trait.replace('_', ' ')}: {value}")


# --- kinds of parameters ---------------------------------------------------------------------------------------------


def describe_kind(kind: Any) -> str:
    """What may stand in a field, in words."""
    kind, marks = unwrap(kind)
    if typing.get_origin(kind) in (Union, types.UnionType):
        inner, marks, words = parts_of(kind)
        described = describe_kind(Annotated[inner, *marks] if marks else inner)
        return f"{described}, or {' or '.join(words)}"
    if isinstance(kind, type) and issubclass(kind, Member):
        return _part_from(kind.axis)
    if choices := _choices(kind):
        return f"one of {' | '.join(map(str, choices))}"
    if kind in (bool, str):
        return "true or false" if kind is bool else "word"
    if any(isinstance(mark, Shape) for mark in marks):
        return "sizes such as 3x32x32"
    return _describe_number(kind, marks)


def _part_from(axis: str) -> str:
    return f"part from {axis}"


def _describe_number(kind: Any, marks: tuple[Any, ...]) -> str:
    unit = next((mark for mark in marks if isinstance(mark, Unit)), Unit("a number", (), ""))
    ranges = [mark for mark in marks if isinstance(mark, Range)]
    if kind is int and not unit.scales and ranges == [Range(least=1)]:
        return "count"
    noun = "whole number" if kind is int and not unit.scales else unit.noun.removeprefix("a ")
    if not ranges or (unit.scales and ranges[-1] == Range(least=0)):  # nobody expects a size below nothing
        return noun
    return f"{noun}, {ranges[-1].describe(unit)}"
