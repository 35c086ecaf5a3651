"""Text <-> object. A spec such as `gradient-average(all-reduce(ring), bucket=1MiB)` is the value on the command line,
the label in a report and the key of a record.

Words are taken whole and classified afterwards by the field they stand in: a number with a unit, or a name. A name is
a file: `double-binary-tree` in a field of the axis `topologies` is the class `DoubleBinaryTree` of
`tutti/topologies/double_binary_tree.py`. Members are dataclasses; `str(member)` parses back to an equal member.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast

from tutti.errors import suggest
from tutti.spec_text import Node, parse_nodes
from tutti.spec_text import SpecError as SpecError

M = TypeVar("M", bound="Member")


# --- units -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """What a number with a unit may look like; a bare number is taken as it is, or only if it is zero."""

    noun: str
    scales: tuple[tuple[str, float], ...]
    example: str
    bare: bool = True

    def parse(self, word: str) -> float | None:
        match = re.fullmatch(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)([A-Za-z%]*)", word)
        if match is None:
            return None
        number, suffix = match.groups()
        if not suffix and not self.bare and float(number) != 0:
            return None
        scale = dict(self.scales).get(suffix) if suffix else 1
        if scale is None or not math.isfinite(float(number) * scale):
            return None
        whole = number.lstrip("+-").isdigit() and scale == 1  # read exactly, beyond what a float can hold
        return int(number) if whole else float(number) * scale

    def format(self, value: float) -> str:
        """The shortest text that reads back to exactly this value."""
        texts = [_number(value)] if value == 0 or not self.scales else []
        for suffix, scale in self.scales:
            text = _number(value / scale) + suffix
            if self.parse(text) == value:
                texts.append(text)
        return min(texts, key=len) if texts else repr(value)


_BYTES = Unit(
    "a size",
    (("B", 1), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30)),
    "25MiB",
)
_BITS = Unit("a rate", (("bit", 1), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)), "100Mbit", bare=False)
_SHARE = Unit("a share", (("%", 0.01),), "10%")
_SECONDS = Unit("a time", (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("min", 60), ("h", 3600)), "40ms", bare=False)


@dataclass(frozen=True)
class Range:
    """Bounds of a number, both included."""

    least: float = -math.inf
    most: float = math.inf

    def describe(self, unit: Unit) -> str:
        if self.most == math.inf:
            return f"at least {unit.format(self.least)}"
        if self.least == -math.inf:
            return f"at most {unit.format(self.most)}"
        return f"between {unit.format(self.least)} and {unit.format(self.most)}"


@dataclass(frozen=True)
class Shape:
    """Sizes joined by `x`, as in 3x32x32."""


Bytes = Annotated[int, _BYTES, Range(least=0)]
Rate = Annotated[float, _BITS, Range(least=1e5, most=1e11)]  # bits per second
Seconds = Annotated[float, _SECONDS, Range(least=0)]
Share = Annotated[float, _SHARE, Range(least=0)]
Count = Annotated[int, Range(least=1)]
Sizes = Annotated[tuple[int, ...], Shape()]


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def parse_quantity(word: str, kind: object, what: str) -> Any:
    """Read one command-line word as a number, size or time; `what` names it in the error."""
    return _Builder(word).value(Node(word, (), 0, len(word), len(word)), kind, what)


# --- members ---------------------------------------------------------------------------------------------------------


@dataclass
class Member:
    """One member of an axis: the dataclass is the configuration and the object. `axis` is the folder it lives in."""

    axis: ClassVar[str] = ""
    noun: ClassVar[str] = ""
    example: ClassVar[str] = ""  # how a member is written whose fields do not tell it
    by_backend: ClassVar[bool] = False  # its messages do not pass our wire

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    def check(self, workers: int) -> None:
        """Refuse a number of workers that cannot be, before anything is set up; a member asks its parts."""
        for each in self.members().values():
            each.check(workers)

    def choices(self) -> dict[str, str]:
        """What was left to it and it has chosen since, by what that is called; a member asks its parts."""
        return {name: chosen for each in self.members().values() for name, chosen in each.choices().items()}

    def members(self) -> dict[str, Member]:
        """Its parts that are members themselves, by the name of the field."""
        values = {field.name: getattr(self, field.name) for field in fields_of(type(self))}
        return {name: value for name, value in values.items() if isinstance(value, Member)}

    def walk(self) -> Iterator[Member]:
        """Itself, and all that it is put together from."""
        yield self
        for each in self.members().values():
            yield from each.walk()

    def __str__(self) -> str:
        """The shortest text that means this: the same for all that are equal."""
        return self._write(frozenset(), str)

    def spell(self) -> str:
        """The same with what was typed, also where that is the default, and with presets in full."""
        return self._write(vars(self).get("_typed", frozenset()), Member.spell)

    def _write(self, typed: frozenset[str], write: Callable[[Member], str]) -> str:
        texts = []
        positional = True
        for index, field in enumerate(fields_of(type(self))):
            value = getattr(self, field.name)
            shown = value != _default(field) or (index == 0 and isinstance(value, Member)) or field.name in typed
            if shown:
                is_member = isinstance(value, Member)
                text = write(value) if is_member else format_value(value, hints_of(type(self))[field.name])
                positional = positional and (index == 0 or isinstance(value, Member))
                texts.append(text if positional else f"{field.name.replace('_', '-')}={text}")
            positional = positional and shown
        return self.name + (f"({', '.join(texts)})" if texts else "")


def part(axis_base: type[M], text: str) -> M:
    """A dataclass default that is itself a spec: `exchange: Exchange = part(Exchange, "all-reduce")`."""
    return dataclasses.field(default_factory=lambda: parse(text, axis_base))


def names(axis: str) -> list[str]:
    """Every member found in the axis' folder."""
    package = importlib.import_module(f"tutti.{axis}")
    modules = (info.name for info in pkgutil.iter_modules(package.__path__) if not info.ispkg)
    return sorted(m.replace("_", "-") for m in modules if m != "base" and not m.startswith("_"))


def member(axis_base: type[M], name: str) -> type[M]:
    """The class behind a name: the one in the file of that name that is called as the file is."""
    module = importlib.import_module(f"tutti.{axis_base.axis}.{name.replace('-', '_')}")
    for key, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, axis_base) and key.lower() == name.replace("-", ""):
            return value
    raise TypeError(f"{module.__name__} holds no {axis_base.__name__} named after the file")


def parse(text: str, axis_base: type[M]) -> M:
    """Read a spec as a member of the axis whose base class is given."""
    try:
        return cast(M, _Builder(text).value(parse_nodes(text), axis_base, axis_base.noun))
    except RecursionError:
        raise SpecError("this is nested too deeply", text, 0, len(text)) from None


# --- nodes -> members ------------------------------------------------------------------------------------------------


class _Builder:
    """Turns nodes into values by the type of the field they stand in; remembers the text for its errors."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, message: str, node: Node) -> SpecError:
        return SpecError(message, self.text, node.start, node.end)

    def value(self, node: Node, kind: Any, what: str) -> Any:
        kind, marks = unwrap(kind)
        words: dict[str, Any] = {}
        if typing.get_origin(kind) in (Union, types.UnionType):
            kind, marks, words = parts_of(kind)
            if node.word in words and not node.args:
                return words[node.word]
        if isinstance(kind, type) and issubclass(kind, Member):
            return self.member(node, kind)
        if node.args:
            raise self.error(f"{what} takes a plain value, not '{node.word}(...)'", node)
        if typing.get_origin(kind) is Literal:
            return self.choice(node, [str(c) for c in typing.get_args(kind)], what)
        if kind is bool:
            return self.choice(node, ["true", "false"], what) == "true"
        if kind is str:
            return node.word
        if any(isinstance(mark, Shape) for mark in marks):
            return self.shape(node, what)
        return self.number(node, kind, marks, what, list(words))

    def choice(self, node: Node, choices: list[str], what: str) -> str:
        if node.word not in choices:
            raise self.error(f"{what} is one of {', '.join(choices)}, not '{node.word}'", node)
        return node.word

    def shape(self, node: Node, what: str) -> tuple[int, ...]:
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", node.word):
            raise self.error(f"{what} takes sizes such as 3x32x32, not '{node.word}'", node)
        return tuple(int(size) for size in node.word.split("x"))

    def number(self, node: Node, kind: Any, marks: tuple[Any, ...], what: str, words: list[str]) -> float:
        unit = next((m for m in marks if isinstance(m, Unit)), Unit("a number", (), "8" if kind is int else "0.1"))
        number = unit.parse(node.word)
        if number is None or (kind is int and number != int(number)):
            noun = "a whole number" if kind is int and not unit.scales else unit.noun
            beside = f", or {' or '.join(words)}," if words else ","
            raise self.error(f"{what} takes {noun} such as {unit.example}{beside} not '{node.word}'", node)
        for bounds in (m for m in reversed(marks) if isinstance(m, Range)):  # the field's own first, then its kind's
            if not bounds.least <= number <= bounds.most:
                raise self.error(f"{what} must be {bounds.describe(unit)}, not {node.word}", node)
        return int(number) if kind is int else float(number)

    def member(self, node: Node, base: type[M]) -> M:
        preset = presets_of(base.axis).get(node.word)
        if preset is None and node.word not in names(base.axis):
            raise self.error(_unknown(node.word, base, self.text[node.start : node.whole]), node)
        try:
            if preset is not None:
                start = parse(preset, base)
                given = self.arguments(node, type(start), preset=True)
                return _typed(dataclasses.replace(start, **given), vars(start)["_typed"] | given.keys())
            cls = member(base, node.word)
            given = self.arguments(node, cls)
            return _typed(cls(**given), given.keys())
        except SpecError:
            raise
        except ValueError as error:
            raise self.error(str(error), node) from None

    def arguments(self, node: Node, cls: type[Member], preset: bool = False) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for index, (key, value) in enumerate(node.args):
            field = self.positional(node, index, cls, preset) if key is None else self.named(node, key, cls, preset)
            said = field.replace("_", "-")
            if field in values:
                raise self.error(f"'{node.word}' is given '{said}' twice", key or value)
            values[field] = self.value(value, hints_of(cls)[field], f"{said} of '{node.word}'")
        missing = [f.name.replace("_", "-") for f in fields_of(cls) if f.name not in values and _required(f)]
        if missing and not preset:
            raise self.error(f"'{node.word}' needs {missing[0]}, as in {node.word}({missing[0]}=...)", node)
        return values

    def positional(self, node: Node, index: int, cls: type[Member], preset: bool) -> str:
        """The field that a plain argument stands for."""
        fields, value = fields_of(cls), node.args[index][1]
        if preset:
            change = f"'{node.word}' is a preset: name what to change in it, as in bucket=1MiB"
            raise self.error(change + self.beside(node, cls), value)
        if any(key is not None for key, _ in node.args[:index]):
            raise self.error("plain arguments come before named ones", value)
        if index >= len(fields):
            most = f"at most {_count(len(fields), 'argument')}" if fields else "no arguments"
            example = f", as in {cls.example}" if cls.example else ""
            raise self.error(f"'{node.word}' takes {most}{example}", value)
        return fields[index].name

    def named(self, node: Node, key: Node, cls: type[Member], preset: bool) -> str:
        """The field that a named argument stands for."""
        fields = [f.name.replace("_", "-") for f in fields_of(cls)]
        name = key.word.replace("_", "-")
        if name not in fields:
            beside = self.beside(node, cls) if preset else ""
            raise self.error(f"'{node.word}' has no parameter '{key.word}'{suggest(name, sorted(fields))}{beside}", key)
        return name.replace("-", "_")

    def beside(self, node: Node, cls: type[Member]) -> str:
        """What to write for the member of another axis that is called as this preset is."""
        found = _find_elsewhere(node.word, cls.axis, self.text[node.start : node.whole])
        return f"; for the {found[0]}, write {found[1]}" if found else ""


def _typed(made: M, fields: Iterable[str]) -> M:
    """Remembers which fields were given, for `spell`; no part of what the member is."""
    vars(made)["_typed"] = frozenset(fields)
    return made


# Where a name of one axis is written in place of another's: how it is put there.
_INSTEAD: dict[tuple[str, str], tuple[str, str]] = {
    ("algorithms", "exchanges"): ("exchange", "model-average({})"),
    ("algorithms", "collectives"): ("collective", "gradient-average(all-reduce({}))"),
    ("algorithms", "aggregators"): ("aggregator", "gradient-average(all-reduce(star, {}))"),
    ("algorithms", "topologies"): ("topology", "model-average(gossip({}))"),
    ("exchanges", "collectives"): ("collective", "all-reduce({})"),
    ("exchanges", "aggregators"): ("aggregator", "all-reduce(star, {})"),
    ("exchanges", "topologies"): ("topology", "gossip({})"),
    ("collectives", "aggregators"): ("aggregator", "all-reduce(star, {})"),
    ("collectives", "topologies"): ("topology", "tree({})"),
}


def _find_elsewhere(word: str, axis: str, written: str) -> tuple[str, str] | None:
    """What the name is that stands where one of this axis should, and how it is put there."""
    if (axis, word) == ("algorithms", "all-reduce"):  # of gradients, as in the preset of this name
        return "exchange", f"gradient-average({written})"
    for (wanted, other), (noun, how) in _INSTEAD.items():
        if wanted == axis and word in (*names(other), *presets_of(other)):
            return noun, how.format(written)
    return None


def _unknown(word: str, base: type[Member], written: str) -> str:
    """The sentence for a name that is not there: where it does belong, or the nearest one."""
    found = _find_elsewhere(word, base.axis, written)
    if found is not None:
        kind, wanted = (f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}" for noun in (found[0], base.noun))
        return f"'{word}' is {kind}, not {wanted}: write {found[1]}"
    noun = "algorithm or preset" if base.axis == "algorithms" else base.noun
    return f"there is no {noun} '{word}'{suggest(word, sorted([*names(base.axis), *presets_of(base.axis)]))}"


def presets_of(axis: str) -> dict[str, str]:
    """The short names that stand for specs of this axis."""
    from tutti.presets import PRESETS, ROUTES

    return {"algorithms": PRESETS, "collectives": ROUTES}.get(axis, {})


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


# --- the dataclass side ----------------------------------------------------------------------------------------------


def fields_of(cls: type[Member]) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.init]


def hints_of(cls: type[Member]) -> dict[str, Any]:
    return _read_hints(cls)  # type: ignore[arg-type]  # mypy asks whether its instances can be hashed


@functools.cache  # annotations are text, which takes long to compute
def _read_hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def unwrap(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(kind) is Annotated:
        inner, *marks = typing.get_args(kind)
        return inner, tuple(marks)
    return kind, ()


def parts_of(union: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A union's kind and its marks, and the words that stand beside it: those of a Literal, and `none`."""
    kinds = [unwrap(kind) for kind in typing.get_args(union)]
    others = [pair for pair in kinds if pair[0] is not type(None)]
    plain = [pair for pair in others if typing.get_origin(pair[0]) is not Literal]
    literals = [kind for kind, _ in others if typing.get_origin(kind) is Literal] if plain else []
    words = {str(word): word for kind in literals for word in typing.get_args(kind)}
    return (*(plain or others)[0], words | ({"none": None} if len(others) < len(kinds) else {}))


def format_value(value: Any, kind: Any) -> str:
    kind, marks = unwrap(kind)
    if typing.get_origin(kind) in (Union, types.UnionType):
        kind, marks, words = parts_of(kind)
        if value in words.values():
            return next(word for word, meaning in words.items() if meaning == value)
    if isinstance(value, bool):
        return str(value).lower()
    unit = next((m for m in marks if isinstance(m, Unit)), None)
    if unit is not None:
        return unit.format(value)
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return _number(value) if isinstance(value, float) else str(value)
