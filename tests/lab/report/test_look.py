"""The page in a browser: whole, readable and quiet, on a phone and on a screen, light, dark and on paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from browser import View, open_page, start_browser
from matplotlib.axes import Axes
from sample_records import make_empty, make_learning_race, make_record

from tutti.lab.record import Record
from tutti.lab.report.chart import Chart
from tutti.lab.report.page import write_report
from tutti.lab.report.parts import Paragraph, Section, Table

LONG = "gradient-average(all-reduce(ring), bucket={}MiB)"
PHONE, SCREEN, PAPER = 390, 1440, 690  # pixels; the last is what an A4 page has between its margins
WINDOWS: dict[str, dict[str, Any]] = {
    "phone": {"width": PHONE},
    "phone in the dark": {"width": PHONE, "dark": True},
    "screen": {"width": SCREEN},
    "screen in the dark": {"width": SCREEN, "dark": True},
    "paper": {"width": PAPER, "dark": True, "paper": True},
}

_BOXES = """() => {
  const shown = element => element.checkVisibility() && element.getBoundingClientRect().width > 0;
  const box = element => { const r = element.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const blocks = [...document.querySelectorAll("h1,h2,h3,p,li,pre,dt,dd,figcaption,thead,tbody,caption,figure div")];
  return {
    blocks: blocks.filter(shown).map(element => [element.textContent.slice(0, 30) || element.className, box(element)]),
    cells: [...document.querySelectorAll("th,td")].filter(shown)
      .map(element => [element.textContent, element.scrollWidth, element.clientWidth]),
    figures: [...document.querySelectorAll("figure div svg")].filter(shown).map(svg => ({
      box: box(svg), texts: [...svg.querySelectorAll("g.text")].map((text, index) => [index, box(text)]),
    })),
  };
}"""
_COLOURS = """() => {
  const text = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const html = [...document.querySelectorAll("body :not(svg *)")].filter(element => element.checkVisibility());
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const words = html.filter(text).map(e => [e.textContent.slice(0, 30), getComputedStyle(e).color, ground(e)]);
  const letters = [...document.querySelectorAll("figure div g.text use:first-of-type")];
  const drawn = letters.filter(e => e.checkVisibility()).map(e => ["in a figure", getComputedStyle(e).fill, ground(e)]);
  return [...words, ...drawn];
}"""


def make_own_section() -> Section:
    """What another module may add."""

    def draw(axes: Axes) -> None:
        axes.plot([1, 2, 3], [3, 1, 2])
        axes.set_xlabel("times")
        axes.text(2, 2, "a word")

    why = "The hosts here have half a core each, so that computing takes the larger part of a step than it did there."
    rows = [["it is faster", "2.0", "1.9", "reproduced", why], ["it sends less", "10", "9.5", "reproduced", why]]
    table = Table(["claim", "published\n×", "ours\n×", "verdict", "why"], rows, "Claims")
    return Section("Published beside ours", [Paragraph("A verdict."), table, Chart("Own chart", [draw], "A caption.")])


SETS: dict[str, list[Record]] = {
    "a race": make_learning_race(),
    "twenty long names": [
        make_record(LONG.format(i), step=0.01 * i, losses=(2, 1 / i, 0.5 / i), hidden=0.001 * i) for i in range(1, 21)
    ],
    "diverged, empty, one": [
        make_record("nan", loss=math.nan),
        make_record("inf", losses=(2, 1e30, math.inf), source="interface"),
        make_record("one", workers=1, accuracies=(0.4,), nbytes=0.0),
        make_empty(),
        make_record("never evaluated", accuracies=(), steps=1),
    ],
    "no evaluation": [make_record(accuracies=())],
}


# The race everywhere, the others where they differ from it: light and dark are the same in all of them.
SIGHTS = [("a race", window) for window in WINDOWS]
SIGHTS += [(name, window) for name in list(SETS)[1:] for window in ("phone in the dark", "screen")]
SIGHTS += [("twenty long names", "paper")]

Views = Callable[[str, str], View]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{index}.html" for index, name in enumerate(SETS)}
    for name, path in paths.items():
        write_report(SETS[name], path, extra=[make_own_section()] if name == "a race" else [])
    return paths


@pytest.fixture(scope="module")
def views(browser: Any, pages: dict[str, Path]) -> Iterator[Views]:
    """A set of records in a window, opened when it is first looked at: opening takes longest."""
    with ExitStack() as stack:
        yield cache(lambda name, window: stack.enter_context(open_page(browser, pages[name], **WINDOWS[window])))


def each_sight() -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "window"), SIGHTS)


def each_window() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("window", WINDOWS)


@each_sight()
def test_it_is_whole_and_quiet(views: Views, name: str, window: str) -> None:
    view = views(name, window)
    assert view.requests == [view.page.url], "it asks for something"
    assert not view.complaints
    wide, room = view.ask("() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= room, "it sticks out of the window"
    assert view.page.locator("h2").count() == (7 if name == "a race" else 6)


# --- places ----------------------------------------------------------------------------------------------------------


def overlap(one: list[float], other: list[float]) -> bool:
    """By more than a pixel, in both directions."""
    return all(min(one[i + 2], other[i + 2]) - max(one[i], other[i]) > 1 for i in (0, 1))


def assert_apart(boxes: list[tuple[Any, list[float]]]) -> None:
    for index, (name, box) in enumerate(boxes):
        hit = [other for other, place in boxes[:index] if overlap(box, place)]
        assert not hit, f"{name!r} overlaps {hit}"


@each_sight()
def test_nothing_overlaps_or_is_cut_off(views: Views, name: str, window: str) -> None:
    found = views(name, window).ask(_BOXES)
    assert len(found["blocks"]) > 20
    assert_apart(found["blocks"])
    assert not [text for text, wanted, has in found["cells"] if wanted > has + 1], "text sticks out of its cell"
    for figure in found["figures"]:
        left, top, right, bottom = figure["box"]
        assert right - left > 300
        assert bottom - top > 100
        assert 0 <= left <= right <= WINDOWS[window]["width"]
        assert len(figure["texts"]) > 5
        assert_apart(figure["texts"])
        for _, (x0, y0, x1, y1) in figure["texts"]:
            assert left - 1 <= x0 <= x1 <= right + 1
            assert top - 1 <= y0 <= y1 <= bottom + 1


@each_window()
def test_every_figure_is_there_in_the_version_that_fits(views: Views, window: str) -> None:
    expected = ["Own chart", "Test accuracy", "Test loss", "Where a step's time went"]
    page = views("a race", window).page
    shown = [svg for svg in page.locator("figure div svg").all() if svg.is_visible()]
    labels = [str(svg.get_attribute("aria-label")) for svg in shown]
    assert page.locator("figure h3").all_text_contents() == expected
    assert [label.partition(".")[0] for label in labels] == expected
    assert all(svg.get_attribute("role") == "img" for svg in shown)
    assert page.locator("figure .narrow").first.is_visible() == (WINDOWS[window]["width"] == PHONE)


@each_window()
def test_numbers_along_the_axes_are_large_enough(views: Views, window: str) -> None:
    script = "() => [...document.querySelectorAll('figure div svg g.text')].map(e => e.getBoundingClientRect().height)"
    shown = [height for height in views("a race", window).ask(script) if height]
    assert min(shown) >= (5 if window == "paper" else 8)


def test_no_page_ends_within_a_figure(views: Views) -> None:
    script = "() => [...document.querySelectorAll('figure, tr')].map(e => getComputedStyle(e).breakInside)"
    assert set(views("a race", "paper").ask(script)) == {"avoid"}


# --- colours ---------------------------------------------------------------------------------------------------------


def contrast(one: str, other: str) -> float:
    """The contrast ratio of the Web Content Accessibility Guidelines 2.2, of which text needs 4.5."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@each_sight()
def test_every_text_can_be_told_from_its_ground(views: Views, name: str, window: str) -> None:
    found = views(name, window).ask(_COLOURS)
    assert len(found) > 40
    for text, colour, ground in found:
        assert contrast(colour, ground) >= 4.5, f"{text!r}: {colour} on {ground}"


def test_colours_follow_the_dark_and_paper_stays_light(views: Views) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    drawn = "() => [...document.querySelectorAll('figure .wide path')].map(e => getComputedStyle(e).fill)"
    light, dark, paper = (views("a race", window) for window in ("screen", "screen in the dark", "paper"))
    assert luminance(dark.ask(ground)) < 0.05
    assert light.ask(drawn) != dark.ask(drawn)
    assert paper.ask(ground) == light.ask(ground)
    assert paper.ask(drawn) == light.ask(drawn)


# --- tables ----------------------------------------------------------------------------------------------------------


def column(view: View, index: int) -> list[str]:
    return [text.strip() for text in view.page.locator(f"#s3-1 tbody tr > :nth-child({index})").all_inner_texts()]


def directions(view: View) -> dict[str, str]:
    script = "() => [...document.querySelectorAll('#s3-1 th[aria-sort]')].map(e => [e.innerText, e.ariaSort])"
    return {text.split("\n")[0]: direction for text, direction in view.ask(script)}


def test_a_table_is_sorted_by_the_column_that_is_chosen(views: Views) -> None:
    view = views("a race", "screen")
    step = view.page.locator("#s3-1 th button", has_text="step").first
    step.click()
    assert column(view, 5) == ["8.6", "14.8", "27.7", "28.7", "49.4", "53.0", "71.3"]
    assert directions(view) == {"step": "ascending"}
    step.click()
    assert column(view, 5) == ["71.3", "53.0", "49.4", "28.7", "27.7", "14.8", "8.6"]
    assert directions(view) == {"step": "descending"}
    view.page.locator("#s3-1 th button", has_text="run").click()
    assert column(view, 1) == sorted(record.name for record in SETS["a race"])
    assert directions(view) == {"run": "ascending"}
    assert not view.complaints


def test_the_keyboard_sorts_and_sizes_sort_by_their_bytes(views: Views) -> None:
    view = views("a race", "screen")
    view.page.locator("#s3-1 th button", has_text="sent").focus()
    view.page.keyboard.press("Enter")
    assert column(view, 8)[0] == "0 B"
    assert column(view, 8)[-1] == "≈ 723 KiB"
    view.page.keyboard.press("Space")
    assert column(view, 8)[0] == "≈ 723 KiB"


def test_what_is_missing_stays_at_the_end(views: Views) -> None:
    view = views("a race", "screen")
    loss = view.page.locator("#s3-1 th button", has_text="loss")
    for first in ("0.0521", "0.1721"):
        loss.click()
        assert column(view, 4)[0] == first
        assert column(view, 4)[-1] == "–"


def test_a_wide_table_moves_within_its_own_place(views: Views) -> None:
    place = views("twenty long names", "phone in the dark").page.locator(".scroll").first
    wide, room = place.evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert wide > room
    place.evaluate("e => { e.scrollLeft = 10000; }")
    last, name = (place.locator(f"tbody {cell}").first.bounding_box() for cell in ("td:last-child", "th"))
    assert last is not None
    assert last["x"] + last["width"] <= PHONE
    assert name is not None
    assert name["x"] >= 0, "the names stay in sight"
