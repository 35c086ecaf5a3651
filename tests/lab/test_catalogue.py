"""The catalogue says what the sources say: docstrings are taken apart, fields and traits are put into words."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import tutti
from tutti.aggregators.base import Aggregator
from tutti.collectives.base import Collective
from tutti.errors import UserError
from tutti.lab import catalogue
from tutti.lab.catalogue import (
    Chapter,
    Page,
    Parameter,
    Price,
    describe_kind,
    find_axes,
    read_catalogue,
    read_chapter,
    read_page,
    select,
    tabulate,
)
from tutti.lab.docstrings import shorten_paper
from tutti.presets import PRESETS, ROUTES
from tutti.spec import Bytes, Count, Member, Range, Rate, Seconds, Sizes, names, parse
from tutti.tasks.base import Task


@pytest.fixture(scope="module")
def chapters() -> list[Chapter]:
    return read_catalogue()


def only(chapters: list[Chapter], axis: str, name: str) -> Page:
    (page,) = (page for chapter in chapters if chapter.axis == axis for page in chapter.pages if page.name == name)
    return page


# --- kinds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Bytes, "size"),
        (Annotated[Bytes, Range(least=8)], "size, at least 8B"),
        (Seconds, "time"),
        (Annotated[Seconds, Range(most=10)], "time, at most 10s"),
        (Rate, "rate, between 100kbit and 100Gbit"),
        (Rate | None, "rate, between 100kbit and 100Gbit, or none"),
        (Count, "count"),
        (int, "whole number"),
        (Annotated[int, Range(least=0)], "whole number, at least 0"),
        (Annotated[Count, Range(most=9)], "whole number, at most 9"),
        (float, "number"),
        (Annotated[float, Range(0, 1)], "number, between 0 and 1"),
        (bool, "true or false"),
        (str, "word"),
        (Sizes, "sizes such as 3x32x32"),
        (Literal["a", "b"], "one of a | b"),
        (int | None, "whole number, or none"),
        (Bytes | Literal["auto"], "size, or auto"),
        (Annotated[Bytes, Range(least=8)] | Literal["auto", "all"] | None, "size, at least 8B, or auto or all or none"),
        (Literal["a", "b"] | None, "one of a | b, or none"),
        (Collective, "part from collectives"),
    ],
)
def test_kinds_in_words(kind: Any, words: str) -> None:
    assert describe_kind(kind) == words


# --- one member ------------------------------------------------------------------------------------------------------


def test_a_route(chapters: list[Chapter]) -> None:
    page = only(chapters, "collectives", "ring")
    assert page.rule.startswith("all-reduce       rounds 2(n-1), bytes")
    assert page.parameters == (Parameter("segment", "size", "2MiB"),)
    assert page.traits == ("only partial sums travel: linear aggregators work",)
    assert page.file == "collectives/ring.py"
    assert page.prices == tuple(
        Price("ring", n, 2 * (n - 1), pytest.approx(2 * (n - 1) / n), pytest.approx(2 * (n - 1))) for n in (2, 4, 8)
    )


def test_choices_that_change_traits_and_costs_are_shown_beside_each_other(chapters: list[Chapter]) -> None:
    page = only(chapters, "collectives", "native")
    assert page.traits == (
        "its messages are the backend's own and do not pass our wire",
        "only partial sums travel: linear aggregators work (native, native(reduce-broadcast))",
        "whole contributions meet: any aggregator works (native(all-gather), native(gather-scatter))",
    )
    assert tabulate(page.prices) == [
        ("native", "2, 6, 14", "1, 1.5, 1.75", "2, 6, 14"),
        ("native(reduce-broadcast)", "2, 6, 14", "1, 3, 7", "2, 6, 14"),
        ("native(all-gather)", "1, 3, 7", "1, 3, 7", "2, 12, 56"),
        ("native(gather-scatter)", "2, 6, 14", "1, 3, 7", "2, 6, 14"),
    ]


def test_an_algorithm_and_its_parts(chapters: list[Chapter]) -> None:
    page = only(chapters, "algorithms", "gradient-average")
    assert page.spec == "gradient-average(all-reduce(ring))"
    assert Parameter("exchange", "part from exchanges", "all-reduce(ring)") in page.parameters
    assert Parameter("overlap", "true or false", "true") in page.parameters
    assert Parameter("bucket", "size, or auto", "4MiB") in page.parameters
    assert [shorten_paper(paper) for paper in page.papers] == [
        "Goyal et al. 2017",
        "Li et al. 2020",
        "Peng et al. 2019",
    ]


def test_a_trait_that_one_choice_changes_names_the_choice(chapters: list[Chapter]) -> None:
    traits = only(chapters, "algorithms", "gradient-average").traits
    assert [each for each in traits if each.startswith("not deterministic")] == [
        "not deterministic: the same run twice may give other bits (gradient-average(all-reduce(ring), bucket=auto))"
    ]


def test_traits_are_silent_where_there_is_nothing_to_say(chapters: list[Chapter]) -> None:
    assert len(only(chapters, "algorithms", "gradient-average").traits) == 2
    assert "runs on one worker, with the whole batch" in only(chapters, "algorithms", "single").traits
    assert only(chapters, "aggregators", "mean").traits == ("linear: works on every route",)


def test_a_trait_nobody_has_put_into_words_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "TRAITS", {"normalised": {False: ""}})
    assert read_page(parse("mean", Aggregator)).traits == ("linear: True", "normalised: True")


def test_a_task_names_its_model_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in names("tasks"):
        monkeypatch.setattr(type(parse(name, Task)), "load", lambda *_: pytest.fail("data was loaded"))
    (page,) = (page for page in read_chapter(Task).pages if page.name == "digits")
    assert page.traits == ("trained with lenet-5 where no model is named",)


# --- axes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def creatures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tests' own axis, as a folder beside the others."""
    monkeypatch.setattr(tutti, "__path__", [*tutti.__path__, str(Path(__file__).parent.parent)])
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.startswith("tutti.creatures")]:
        del sys.modules[name]


def test_axes_come_in_a_fixed_order_with_the_presets_behind_the_algorithms(chapters: list[Chapter]) -> None:
    order = [chapter.axis for chapter in chapters]
    assert order[:6] == ["algorithms", "presets", "exchanges", "collectives", "topologies", "aggregators"]
    assert [page.name for page in chapters[1].pages] == [*PRESETS, *ROUTES]
    for chapter in chapters:
        assert chapter.axis == "presets" or [page.name for page in chapter.pages] == names(chapter.axis)


@pytest.mark.usefixtures("creatures")
def test_a_folder_with_a_base_is_an_axis_behind_the_known_ones() -> None:
    known, last = find_axes()[:-1], find_axes()[-1]
    assert "creatures" not in [base.axis for base in known]
    assert last.axis == "creatures"
    assert issubclass(last, Member)


def test_an_axis_says_what_it_is_and_where_its_members_stand(chapters: list[Chapter]) -> None:
    collectives = next(chapter for chapter in chapters if chapter.axis == "collectives")
    assert collectives.summary == "Make everybody's buffer the sum of all, in place."
    assert collectives.parts[0] == "route of all-reduce"
    exchanges = next(chapter for chapter in chapters if chapter.axis == "exchanges")
    assert exchanges.parts[0].startswith("exchange of d2 or gradient-average or gradient-tracking or model-average")


def test_it_is_json(chapters: list[Chapter]) -> None:
    rows = json.loads(json.dumps([asdict(chapter) for chapter in chapters]))
    assert {page["name"] for row in rows for page in row["pages"]} >= {"ring", "mean", "lenet-5", "digits", "ddp"}


# --- choosing --------------------------------------------------------------------------------------------------------


def found(chapters: list[Chapter], wanted: str) -> list[tuple[str, str]]:
    return [(page.axis, page.name) for chapter in select(chapters, wanted) for page in chapter.pages]


def test_an_axis_is_chosen_whole(chapters: list[Chapter]) -> None:
    assert [name for _, name in found(chapters, "aggregators")] == names("aggregators")
    assert [name for _, name in found(chapters, "algorithms")] == [*names("algorithms"), *PRESETS]
    assert [name for _, name in found(chapters, "collectives")] == [*names("collectives"), *ROUTES]
    assert [name for _, name in found(chapters, "presets")] == [*PRESETS, *ROUTES]


def test_a_name_is_found_on_every_axis_that_has_it(chapters: list[Chapter]) -> None:
    assert found(chapters, "ring") == [("presets", "ring"), ("collectives", "ring"), ("topologies", "ring")]
    assert found(chapters, "lenet-5") == [("models", "lenet-5")]


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        ("rign", "did you mean 'ring'?"),
        ("modles", "did you mean 'models'?"),
        ("lenet5", "did you mean 'lenet-5'?"),
        ("zzzzzzzzzz", "the axes are algorithms, presets, "),
    ],
)
def test_anything_else_gets_a_sentence(chapters: list[Chapter], wanted: str, advice: str) -> None:
    with pytest.raises(UserError) as caught:
        select(chapters, wanted)
    assert f"there is no axis or member '{wanted}'; {advice}" in str(caught.value)
    assert "\n" not in str(caught.value)
