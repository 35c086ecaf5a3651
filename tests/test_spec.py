"""Specs: text <-> object, what is refused, and where the error points."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from tutti import presets
from tutti.aggregators.base import Aggregator
from tutti.algorithms.base import Algorithm
from tutti.collectives.base import Collective
from tutti.exchanges.base import Exchange
from tutti.presets import PRESETS
from tutti.spec import (
    Bytes,
    Count,
    Member,
    Range,
    Seconds,
    Share,
    Sizes,
    SpecError,
    Unit,
    names,
    parse,
    parse_quantity,
    presets_of,
)
from tutti.spec import member as member_class

RATE = Annotated[float, Unit("a rate", (("bit", 1), ("Mbit", 1e6)), "100Mbit")]
SHARE = Annotated[float, Unit("a share", (("%", 0.01),), "1%"), Range(0, 1)]


@pytest.fixture(scope="module")
def creature() -> Iterator[type[Member]]:
    """The base class of the axis in tests/creatures, mounted as tutti.creatures."""
    place = Path(__file__).with_name("creatures")
    spec = importlib.util.spec_from_file_location(
        "tutti.creatures", place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert spec is not None
    sys.modules["tutti.creatures"] = importlib.util.module_from_spec(spec)
    yield importlib.import_module("tutti.creatures.base").Creature
    for name in [name for name in sys.modules if name.startswith("tutti.creatures")]:
        del sys.modules[name]


def refuse(marked: str, base: type[Member], *parts: str) -> SpecError:
    """The text between « and » is what the error must point at; its message must hold the parts."""
    start, text = marked.index("«"), marked.replace("«", "").replace("»", "")
    with pytest.raises(SpecError) as caught:
        parse(text, base)
    error = caught.value
    assert (error.start, error.end) == (start, marked.index("»") - 1), error
    assert error.text == text
    for part in parts:
        assert part in error.message, error.message
    return error


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "gradient-average(all-reduce(native(gather-scatter)), 1MiB, false)",
        "gradient-average(all-reduce(native(by=gather-scatter)), bucket=1MiB, overlap=false)",
        "gradient-average(exchange=all-reduce(route=native(gather-scatter)), overlap=false, bucket=1MiB)",
        "gradient-average(overlap=false, bucket=1MiB, exchange=all-reduce:native:gather-scatter)",
        "  gradient-average (\n all-reduce ( native : gather-scatter ) ,\tbucket = 1MiB,overlap=false ) ",
        "gradient-average(all-reduce:native:gather-scatter,bucket=1048576,overlap=false)",
        "gradient-average(all-reduce(native(gather-scatter), weighted-mean()), bucket=1024KiB, overlap=false)",
    ],
)
def test_many_ways_to_write_one_thing(text: str) -> None:
    canonical = "gradient-average(all-reduce(native(gather-scatter)), bucket=1MiB, overlap=false)"
    read = parse(text, Algorithm)
    assert read == parse(canonical, Algorithm)
    assert str(read) == canonical


@pytest.mark.parametrize(
    ("sugar", "plain"),
    [
        ("gradient-average:all-reduce", "gradient-average(all-reduce)"),
        ("gradient-average:all-reduce:star", "gradient-average(all-reduce(star))"),
        ("gradient-average:all-reduce:star:0", "gradient-average(all-reduce(star(0)))"),
        ("gradient-average:all-reduce(star, sum)", "gradient-average(all-reduce(star, sum))"),
        ("gradient-average(all-reduce:star, 1MiB)", "gradient-average(all-reduce(star), 1MiB)"),
        ("gradient-average : all-reduce : star", "gradient-average(all-reduce(star))"),
    ],
)
def test_colons_are_parentheses(sugar: str, plain: str) -> None:
    assert parse(sugar, Algorithm) == parse(plain, Algorithm)


def test_a_name_is_resolved_by_the_axis_it_stands_in() -> None:
    assert str(parse("ring", Algorithm)) == "gradient-average(all-reduce(ring), overlap=false)"
    assert type(parse("ring", Collective)).__module__ == "tutti.collectives.ring"
    assert str(parse("all-gather", Algorithm)).startswith("gradient-average(all-reduce(native(all-gather))")
    assert type(parse("all-gather", Collective)).__module__ == "tutti.collectives.all_gather"
    assert type(parse("all-reduce", Exchange)).__module__ == "tutti.exchanges.all_reduce"
    inside: Any = parse("gradient-average(all-reduce(ring))", Algorithm)
    assert isinstance(inside.exchange, Exchange)
    assert isinstance(inside.exchange.route, Collective)


def test_fields_are_written_with_hyphens_or_underscores(creature: type[Member]) -> None:
    assert parse("sea-horse(even-number=true)", creature) == parse("sea-horse(even_number=true)", creature)
    assert str(parse("sea-horse(even_number=true)", creature)) == "sea-horse(even-number=true)"
    refuse("«sea_horse»", creature, "did you mean 'sea-horse'?")


def test_words_are_taken_whole(creature: type[Member]) -> None:
    horse: Any = parse("sea-horse(rate=100Mbit, share=1%, shape=3x32x32, label=1-bit-adam, factor=-1e-3)", creature)
    assert (horse.rate, horse.share, horse.shape) == (100e6, 0.01, (3, 32, 32))
    assert (horse.label, horse.factor) == ("1-bit-adam", -0.001)


def test_a_preset_may_begin_with_a_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.PRESETS, "1-bit-adam", "gradient-average(bucket=1KiB)")
    assert parse("1-bit-adam", Algorithm) == parse("gradient-average(bucket=1KiB)", Algorithm)


def test_none_stands_where_a_member_or_number_may_be_left_out(creature: type[Member]) -> None:
    whale: Any = parse("whale(3, ant, friend=none)", creature)
    assert whale.friend is None
    horse: Any = parse("sea-horse(limit=5)", creature)
    assert horse.limit == 5
    assert parse("sea-horse(limit=none)", creature) == parse("sea-horse", creature)


@pytest.mark.parametrize(
    ("word", "value", "written"),
    [("auto", "auto", "auto"), ("0", 0, "0"), ("7", 7, "7B"), ("25MiB", 25 * 2**20, "25MiB"), ("1e3B", 1000, "1KB")],
)
def test_a_word_may_stand_beside_a_size(word: str, value: Any, written: str, creature: type[Member]) -> None:
    horse: Any = parse(f"sea-horse(reach={word})", creature)
    assert horse.reach == value
    assert str(horse) == f"sea-horse(reach={written})"
    assert parse(str(horse), creature) == horse


def test_choices_that_may_be_left_out(creature: type[Member]) -> None:
    horse: Any = parse("sea-horse(colour=blue)", creature)
    assert (horse.colour, str(horse)) == ("blue", "sea-horse(colour=blue)")
    assert parse("sea-horse(colour=none)", creature) == parse("sea-horse", creature)
    refuse("sea-horse(colour=«green»)", creature, "colour of 'sea-horse' is one of red, blue, not 'green'")


# --- numbers with units ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "kind", "value"),
    [
        ("0", Bytes, 0),
        ("7", Bytes, 7),
        ("7B", Bytes, 7),
        ("2KB", Bytes, 2000),
        ("2KiB", Bytes, 2048),
        ("1.5KiB", Bytes, 1536),
        (".5KiB", Bytes, 512),
        ("25MiB", Bytes, 25 * 2**20),
        ("1GiB", Bytes, 2**30),
        ("1e3", Bytes, 1000),
        ("9007199254740993", Bytes, 2**53 + 1),
        ("40ms", Seconds, 0.04),
        ("3us", Seconds, 3e-6),
        ("0", Seconds, 0.0),
        ("2s", Seconds, 2.0),
        ("1.5min", Seconds, 90.0),
        ("1h", Seconds, 3600.0),
        ("100Mbit", RATE, 1e8),
        ("1%", SHARE, 0.01),
        ("0.25", SHARE, 0.25),
        ("10%", Share, 0.1),
        ("3x32x32", Sizes, (3, 32, 32)),
        ("784", Sizes, (784,)),
        ("12345678901234567891", int, 12345678901234567891),
        ("-3", int, -3),
        ("+3", int, 3),
        ("8.0", int, 8),
        ("0.1", float, 0.1),
        ("-2.5e-3", float, -0.0025),
        ("3", float, 3.0),
    ],
)
def test_quantities(word: str, kind: Any, value: Any) -> None:
    read = parse_quantity(word, kind, "it")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("word", "kind", "message"),
    [
        ("fast", Bytes, "it takes a size such as 25MiB, not 'fast'"),
        ("1MB/s", Bytes, "it takes a size such as 25MiB"),
        ("1.5B", Bytes, "it takes a size such as 25MiB"),
        ("-1", Bytes, "it must be at least 0, not -1"),
        ("1e999", Bytes, "it takes a size such as 25MiB, not '1e999'"),
        ("1" + "0" * 400, Seconds, "it takes a time such as 40ms"),
        ("40", Seconds, "it takes a time such as 40ms, not '40'"),  # milliseconds may have been meant
        ("40mins", Seconds, "it takes a time such as 40ms, not '40mins'"),
        ("-40ms", Seconds, "it must be at least 0, not -40ms"),
        ("1e999", Seconds, "it takes a time such as 40ms"),
        ("nan", float, "it takes a number such as 0.1, not 'nan'"),
        ("inf", float, "it takes a number such as 0.1"),
        ("1e999", float, "it takes a number such as 0.1"),
        ("1.5", int, "it takes a whole number such as 8, not '1.5'"),
        ("1e999", int, "it takes a whole number such as 8"),
        ("", int, "it takes a whole number such as 8"),
        ("0", Count, "it must be at least 1, not 0"),
        ("ten", Share, "it takes a share such as 10%, not 'ten'"),
        ("-1%", Share, "it must be at least 0, not -1%"),
        ("101%", SHARE, "it must be between 0 and 100%, not 101%"),
        ("1", Annotated[float, Range(most=0)], "it must be at most 0, not 1"),
        ("3x", Sizes, "it takes sizes such as 3x32x32, not '3x'"),
        ("3x0x2", Sizes, "it takes sizes such as 3x32x32"),
        ("yes", bool, "it is one of true, false, not 'yes'"),
    ],
)
def test_refused_quantities(word: str, kind: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_quantity(word, kind, "it")
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("value", [0, 1, 999, 1000, 1024, 1536, 10**6 + 1, 25 * 2**20, 10**9, 2**40, 10**15, 2**60 + 1])
def test_sizes_are_written_so_that_they_read_back(value: int, creature: type[Member]) -> None:
    horse = dataclasses.replace(parse("sea-horse", creature), size=value)
    assert parse(str(horse), creature) == horse


def test_times_are_written_so_that_they_read_back(creature: type[Member]) -> None:
    drawn = random.Random(0)
    values = [0.04, 1e-9, 0.1 + 0.2, 1 / 3, 86400.0, 1e22, 3e-6, 7e-6]
    for value in values + [10 ** drawn.uniform(-9, 9) for _ in range(200)]:
        horse = dataclasses.replace(parse("sea-horse", creature), pause=value, factor=value, rate=value)
        assert parse(str(horse), creature) == horse, value


def test_the_shortest_unit_is_written(creature: type[Member]) -> None:
    assert str(parse("sea-horse(1073741824)", creature)) == "sea-horse(1GiB)"
    assert str(parse("sea-horse(size=0, pause=0.04s)", creature)) == "sea-horse(0, pause=40ms)"


# --- writing ---------------------------------------------------------------------------------------------------------


def built_specs() -> list[tuple[str, type[Member]]]:
    """Many specs that the package can build, from every name and every preset that is there."""
    routes = [*names("collectives"), "ring(1KiB)", "star(2)", *(f"native({by})" for by in WAYS)]
    averages = [f"all-reduce({route}, {combine})" for route in routes for combine in names("aggregators")]
    algorithms = [f"gradient-average({exchange})" for exchange in averages]
    algorithms += [f"gradient-average(bucket={size}, overlap={way})" for size in SIZES for way in ("true", "false")]
    algorithms += [f"gradient-average(update=bucket, wait={when})" for when in ("backward", "forward")]
    algorithms += [f"{preset}(bucket=1234B)" for preset in PRESETS] + list(PRESETS) + names("algorithms")
    return [
        *((text, Algorithm) for text in algorithms),
        *((text, Collective) for text in routes),
        *((text, Aggregator) for text in names("aggregators")),
        *((text, Exchange) for text in [*averages, *names("exchanges")]),
    ]


WAYS = ("all-reduce", "reduce-broadcast", "all-gather", "gather-scatter")
SIZES = ("auto", "0", "1", "1KB", "1KiB", "25MiB", "123456789", "1.5GiB")


@pytest.mark.parametrize(("text", "base"), built_specs())
def test_round_trip(text: str, base: type[Member]) -> None:
    built = parse(text, base)
    assert parse(str(built), base) == built
    assert str(parse(str(built), base)) == str(built)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ddp", "gradient-average(all-reduce(ring))"),
        ("ddp()", "gradient-average(all-reduce(ring))"),
        ("ddp(bucket=4MiB)", "gradient-average(all-reduce(ring))"),
        ("ddp(bucket=0)", "gradient-average(all-reduce(ring), bucket=0)"),
        ("ddp(bucket=auto)", "gradient-average(all-reduce(ring), bucket=auto)"),
        ("ddp(update=bucket, wait=forward)", "gradient-average(all-reduce(ring), update=bucket, wait=forward)"),
        ("ddp(update=whole, wait=backward)", "gradient-average(all-reduce(ring))"),
        ("ring(overlap=true)", "gradient-average(all-reduce(ring))"),
        ("all-reduce", "gradient-average(all-reduce(native), bucket=0, overlap=false)"),
        ("ddp(exchange=all-reduce(star, mean))", "gradient-average(all-reduce(star, mean))"),
        ("gradient-average(all-reduce(ring, weighted-mean))", "gradient-average(all-reduce(ring))"),
        ("torch-ddp(unused=true)", "torch-ddp(unused=true)"),
        ("torch-ddp(1MiB)", "torch-ddp(1MiB)"),
        ("single()", "single"),
    ],
)
def test_canonical_text_leaves_defaults_out(text: str, canonical: str) -> None:
    assert str(parse(text, Algorithm)) == canonical


def test_a_later_field_is_named_when_an_earlier_one_is_left_out(creature: type[Member]) -> None:
    horse = parse("sea-horse(shape=1x28x28, mood=wild, limit=7)", creature)
    assert str(horse) == "sea-horse(shape=1x28x28, mood=wild, limit=7)"
    whale = parse("whale(first-calf=sea-horse(8B), years=2, friend=whale(1, ant, sea-horse))", creature)
    assert str(whale) == "whale(2, sea-horse(8B), friend=whale(1, ant, sea-horse))"
    assert parse(str(whale), creature) == whale


def test_a_preset_is_a_start_that_named_fields_change() -> None:
    changed: Any = parse("gather-scatter(bucket=1MiB)", Algorithm)
    assert (changed.bucket, changed.overlap, changed.exchange.route.by) == (2**20, False, "gather-scatter")
    assert PRESETS["gather-scatter"] == str(parse("gather-scatter", Algorithm))  # the preset itself is untouched


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_written_in_canonical_text(name: str) -> None:
    assert str(parse(PRESETS[name], Algorithm)) == PRESETS[name]


def test_no_preset_hides_an_algorithm() -> None:
    assert not PRESETS.keys() & set(names("algorithms"))


@pytest.mark.parametrize("base", [Algorithm, Exchange, Collective, Aggregator])
def test_every_file_of_an_axis_holds_the_class_named_after_it(base: type[Member]) -> None:
    assert names(base.axis)
    for name in names(base.axis):
        assert parse(name, base).name == name
        assert issubclass(member_class(base, name), base)


def test_defaults_are_not_shared() -> None:
    one: Any = parse("gradient-average", Algorithm)
    other: Any = parse("gradient-average", Algorithm)
    assert one.exchange is not other.exchange


# --- what is refused, and where --------------------------------------------------------------------------------------


def test_unknown_names_suggest_the_nearest() -> None:
    refuse("«dpd»", Algorithm, "there is no algorithm or preset 'dpd'", "did you mean 'ddp'?")
    refuse("«gradient-avrage»(all-reduce)", Algorithm, "did you mean 'gradient-average'?")
    refuse("gradient-average(«all-reduc»)", Algorithm, "there is no exchange 'all-reduc'", "'all-reduce'?")
    refuse("gradient-average(all-reduce(«rnig»), 1MiB)", Algorithm, "there is no collective 'rnig'", "'ring'?")
    refuse("gradient-average:all-reduce:«rnig»", Algorithm, "did you mean 'ring'?")
    refuse("all-reduce(combine=«man»)", Exchange, "there is no aggregator 'man'", "did you mean 'mean'?")
    refuse("«12»", Algorithm, "there is no algorithm or preset '12'")
    there = ", ".join(sorted([*names("collectives"), *presets.ROUTES]))
    refuse("«qqqq»", Collective, f"there is no collective 'qqqq'; there is {there}")


def test_a_name_of_another_axis_is_told_how_to_get_in() -> None:
    refuse("gradient-average(«ring»)", Algorithm, "'ring' is a collective, not an exchange: write all-reduce(ring)")
    refuse("gradient-average(«star»(root=1), 1MiB)", Algorithm, "write all-reduce(star(root=1))")
    refuse("ddp(exchange=«native»)", Algorithm, "write all-reduce(native)")
    refuse("gradient-average(all-reduce(«median»))", Algorithm, "is an aggregator, not a collective", "(star, median)")
    refuse("«krum»(1)", Algorithm, "'krum' is an aggregator, not an algorithm: write", "(all-reduce(star, krum(1)))")
    refuse("«corrupt»", Algorithm, "'corrupt' is an exchange, not an algorithm: write model-average(corrupt)")
    refuse("«tree»:chain", Algorithm, "'tree' is a collective, not an algorithm", "(all-reduce(tree:chain))")
    refuse("«chain»", Collective, "'chain' is a topology, not a collective: write tree(chain)")


@pytest.mark.parametrize("base", [Algorithm, Exchange, Collective])
def test_what_a_misplaced_name_is_told_to_write_can_be_read(base: type[Member]) -> None:
    """Except where the sentence speaks of a whole exchange to somebody who has written only its route."""
    axes = ["exchanges", "collectives", "aggregators", "topologies"]
    words = {word for axis in axes[axes.index(base.axis) + 1 if base.axis in axes else 0 :] for word in names(axis)}
    known = {*names(base.axis), *presets_of(base.axis)}
    for word in sorted(words - known):
        with pytest.raises(SpecError, match=f"'{word}' is an? .*: write ") as caught:
            parse(word, base)
        advice = caught.value.message.partition(": write ")[2]
        kind = Exchange if base is Collective and advice.startswith("all-reduce") else base
        assert parse(advice, kind) is not None


def test_an_exchange_or_route_that_a_preset_is_named_after() -> None:
    """`all-reduce` is an exchange, and short for an algorithm as well."""
    change = "'all-reduce' is a preset: name what to change in it, as in bucket=1MiB"
    refuse("all-reduce(«ring»)", Algorithm, f"{change}; for the exchange, write gradient-average(all-reduce(ring))")
    refuse("all-reduce(«ring»(segment=1MiB), mean)", Algorithm, "(all-reduce(ring(segment=1MiB), mean))")
    refuse(
        "all-reduce(«route»=ring)", Algorithm, "no parameter 'route'", "write gradient-average(all-reduce(route=ring))"
    )
    written = "for the collective, write gradient-average(all-reduce(ring(segment=1MiB)))"
    refuse("ring(«segment»=1MiB)", Algorithm, "'ring' has no parameter 'segment'", written)


def test_a_preset_inside_is_no_name() -> None:
    refuse("gradient-average(«ddp»)", Algorithm, "there is no exchange 'ddp'")


def test_wrong_types() -> None:
    refuse("ddp(bucket=«large»)", Algorithm, "bucket of 'ddp' takes a size such as 25MiB, or auto, not 'large'")
    refuse("allreduce-model(bucket=«large»)", Algorithm, "takes a size such as 25MiB, not 'large'")
    refuse("allreduce-model(bucket=«auto»)", Algorithm, "takes a size such as 25MiB, not 'auto'")
    refuse("ddp(overlap=«1»)", Algorithm, "overlap of 'ddp' is one of true, false, not '1'")
    refuse("ddp(bucket=«1MiB»(2))", Algorithm, "bucket of 'ddp' takes a plain value, not '1MiB(...)'")
    refuse("gradient-average(«25MiB»)", Algorithm, "there is no exchange '25MiB'")
    refuse("ddp(bucket=«auto»(2))", Algorithm, "bucket of 'ddp' takes a plain value, not 'auto(...)'")
    refuse("gradient-average(all-reduce, «ring»)", Algorithm, "takes a size such as 25MiB, or auto, not 'ring'")
    refuse("star(«1.5»)", Collective, "root of 'star' takes a whole number such as 8, not '1.5'")
    refuse("native(«bcast»)", Collective, "by of 'native' is one of all-reduce, reduce-broadcast")


def test_out_of_range(creature: type[Member]) -> None:
    refuse("ddp(bucket=«-1»)", Algorithm, "bucket of 'ddp' must be at least 0, not -1")
    refuse("star(«-1»)", Collective, "root of 'star' must be at least 0, not -1")
    refuse("torch-ddp(bucket=«0»)", Algorithm, "must be at least 1")
    refuse("sea-horse(small=«7»)", creature, "small of 'sea-horse' must be at least 8B, not 7")
    refuse("sea-horse(share=«1.1»)", creature, "must be between 0 and 100%, not 1.1")
    refuse("sea-horse(below=«1»)", creature, "must be at most 0, not 1")


def test_parameters_unknown_or_given_twice() -> None:
    refuse("ddp(«buckets»=1MiB)", Algorithm, "'ddp' has no parameter 'buckets'", "did you mean 'bucket'?")
    refuse("gradient-average(all-reduce, «q»=1)", Algorithm, "there is bucket, exchange, overlap")
    refuse("single(«x»=1)", Algorithm, "'single' has no parameter 'x'; there is none")
    refuse("ddp(bucket=1, «bucket»=2)", Algorithm, "'ddp' is given 'bucket' twice")
    refuse("gradient-average(all-reduce, «exchange»=all-reduce)", Algorithm, "is given 'exchange' twice")


def test_hyphens_in_what_is_said_about_parameters(creature: type[Member]) -> None:
    refuse("sea-horse(even-number=true, «even_number»=true)", creature, "is given 'even-number' twice")
    refuse("«whale»(1)", creature, "'whale' needs first-calf, as in whale(first-calf=...)")
    refuse("sea-horse(«even-numbr»=true)", creature, "did you mean 'even-number'?")


def test_missing_and_too_many(creature: type[Member]) -> None:
    refuse("«whale»", creature, "'whale' needs years, as in whale(years=...)")
    refuse("whale(1, «whale»(2))", creature, "'whale' needs first-calf")
    refuse("all-reduce(ring, mean, «4»)", Exchange, "'all-reduce' takes at most 2 arguments")
    refuse("star(0, «1»)", Collective, "'star' takes at most 1 argument")
    refuse("single(«1»)", Algorithm, "'single' takes no arguments")


def test_plain_arguments_come_before_named_ones() -> None:
    refuse("gradient-average(overlap=false, «1MiB»)", Algorithm, "plain arguments come before named ones")
    refuse("gradient-average(bucket=1MiB, «all-reduce»)", Algorithm, "plain arguments come before named ones")


def test_presets_take_named_arguments_only() -> None:
    refuse("ddp(«1MiB»)", Algorithm, "'ddp' is a preset: name what to change in it, as in bucket=1MiB")
    refuse("ddp:«ring»", Algorithm, "'ddp' is a preset")


def test_what_a_member_refuses_itself(creature: type[Member], monkeypatch: pytest.MonkeyPatch) -> None:
    refuse("gradient-average(all-reduce(«ring»(segment=4)))", Algorithm, "segment of 'ring' must be at least 8 bytes")
    refuse("«sea-horse»(seed=13)", creature, "13 brings bad luck")
    refuse("«ddp»(wait=forward)", Algorithm, "wait=forward needs update=bucket and overlap")
    refuse("«ring»(update=bucket, wait=forward)", Algorithm, "wait=forward needs update=bucket and overlap")
    refuse("«gradient-average»(overlap=false, update=bucket)", Algorithm, "update=bucket needs overlap: each bucket")
    monkeypatch.setattr(member_class(Algorithm, "gradient-average"), "__init__", _refuse_small_buckets)
    refuse("«ddp»(bucket=1)", Algorithm, "too small")


def _refuse_small_buckets(algorithm: Member, **fields: Any) -> None:
    vars(algorithm).update({"exchange": parse("all-reduce", Exchange), "bucket": 2, "overlap": True} | fields)
    if fields.get("bucket") == 1:
        raise ValueError("too small")


def test_nested_without_end() -> None:
    for text in ("ddp:" * 20_000, "ddp(" * 20_000, "ddp:" * 20_000 + "ddp"):
        with pytest.raises(SpecError):
            parse(text, Algorithm)


def test_random_tokens_parse_or_are_refused(creature: type[Member]) -> None:
    words = [*names("algorithms"), *names("exchanges"), *names("collectives"), *names("aggregators"), *PRESETS]
    words += ["bucket", "overlap", "exchange", "route", "combine", "by", "segment", "root", "unused", "none", "true"]
    words += ["sea-horse", "whale", "ant", "size", "pause", "years", "first-calf", "friend", "limit", "shape", "share"]
    words += ["1", "0", "-1", "1MiB", "1e999", "-1e999", "nan", "1%", "3x2", "٣", "²", "x", "ünïcode", "", " ", "\n"]
    marks = ["(", ")", ",", "=", ":", "(", ")", ","]
    drawn = random.Random(1)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(6000):
        text = "".join(drawn.choice(words if drawn.random() < 0.55 else marks) for _ in range(drawn.randint(0, 12)))
        base = drawn.choice([Algorithm, Exchange, Collective, creature])
        outcomes[_outcome(text, base)] += 1
    assert min(outcomes.values()) > 10, outcomes


def _outcome(text: str, base: type[Member]) -> str:
    try:
        read = parse(text, base)
    except SpecError as error:
        return "refused" if 0 <= error.start <= error.end <= len(text) else "refused at a place outside the text"
    return "read" if parse(str(read), base) == read else "read, and written otherwise"


def test_random_specs_round_trip(creature: type[Member]) -> None:
    drawn = random.Random(2)
    for _ in range(150):
        built = _random_creature(drawn, creature, depth=3)
        assert parse(str(built), creature) == built
        assert str(parse(str(built), creature)) == str(built)


def _random_creature(drawn: random.Random, base: type[Member], depth: int) -> Member:
    name = drawn.choice(["ant", "sea-horse", "whale"] if depth else ["ant", "sea-horse"])
    cls: Any = member_class(base, name)
    if name == "whale":
        first, second, friend = (_random_creature(drawn, base, depth - 1) for _ in range(3))
        return cls(drawn.randint(1, 9), first, second, drawn.choice([None, friend]))
    values = {
        "size": drawn.choice([2**20, drawn.randint(0, 2**40)]),
        "pause": drawn.choice([0.0, drawn.uniform(0, 1e3)]),
        "share": drawn.random(),
        "shape": tuple(drawn.randint(1, 300) for _ in range(drawn.randint(1, 4))),
        "seed": -drawn.randint(0, 2**70),
        "factor": drawn.gauss(0, 1e3),
        "even_number": drawn.choice([True, False]),
        "mood": drawn.choice(["calm", "wild"]),
        "limit": drawn.choice([None, drawn.randint(-9, 9)]),
        "reach": drawn.choice(["auto", drawn.randint(0, 2**40)]),
        "colour": drawn.choice([None, "red", "blue"]),
    }
    chosen = {key: value for key, value in values.items() if drawn.random() < 0.5}
    return cls(**chosen) if name == "sea-horse" else cls()


# --- light to import -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["tutti.spec", "tutti.spec_text", "tutti.presets"])
def test_reading_names_needs_no_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_listing_an_axis_needs_no_torch() -> None:
    program = "import sys; from tutti.spec import names; names('algorithms'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- what was typed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "short", "spelled"),
    [
        (
            "switch(200, ddp, d-psgd)",
            "switch(200, other=model-average(gossip(ring)))",
            "switch(200, gradient-average(all-reduce(ring)), model-average(gossip(ring)))",
        ),
        (
            "gradient-average(corrupt(all-reduce(star, median), by=sign-flip))",
            "gradient-average(corrupt(all-reduce(star, median)))",
            "gradient-average(corrupt(all-reduce(star, median), by=sign-flip))",
        ),
        ("ddp", "gradient-average(all-reduce(ring))", "gradient-average(all-reduce(ring))"),
    ],
)
def test_what_was_typed_is_spelled_also_where_it_is_the_default(text: str, short: str, spelled: str) -> None:
    algorithm = parse(text, Algorithm)
    assert (str(algorithm), algorithm.spell()) == (short, spelled)
    assert parse(spelled, Algorithm) == parse(short, Algorithm) == algorithm
    assert str(parse(spelled, Algorithm)) == short
