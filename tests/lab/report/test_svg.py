"""Figures that stand in one page do not disturb each other, and take their colours from it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from sample_records import make_race

from tutti.lab.picture import COLOURS, EDGE, GREY, GRID, WHITE, make_figure
from tutti.lab.report.svg import make_svg


@pytest.fixture(scope="module", name="svg")
def _svg() -> str:
    return draw("one")


def draw(name: str, label: str = "What it shows") -> str:
    return make_svg(make_figure(make_race()), name, label)


def ids(svg: str) -> list[str]:
    return re.findall(r'\bid="(.*?)"', svg)


def test_ids_are_the_figures_own(svg: str) -> None:
    assert len(ids(svg)) == len(set(ids(svg))) > 20
    assert all(each.startswith("one-") for each in ids(svg))
    assert not set(ids(svg)) & set(ids(draw("other")))


def test_every_reference_leads_somewhere_in_the_same_figure(svg: str) -> None:
    references = re.findall(r'href="#(.*?)"', svg) + re.findall(r"url\(#(.*?)\)", svg)
    assert len(references) > 100
    assert set(references) == set(ids(svg)), "and nothing has an id for nothing"


def test_nothing_of_a_document_is_left(svg: str) -> None:
    assert not re.search(r"<style|<metadata|xmlns|<\?xml|<!|https?:", svg)
    ElementTree.fromstring(svg)


def test_the_colours_are_the_pages(svg: str) -> None:
    for colour in (*COLOURS, WHITE, GREY, EDGE, GRID):
        assert colour.lower() not in svg
    for name in ("paper", "muted", "line", "grid", *(f"c{i}" for i in range(7)), *(f"t{i}" for i in range(7))):
        assert f"var(--{name})" in svg
    assert not re.search(r' (?:fill|stroke)="var', svg), "variables work in styles only"
    (ground, *_) = re.findall(r"<pattern[^>]*><rect[^>]*>", svg)
    assert "fill:var(--paper)" in ground, "hatches lie on the page's ground"


def test_every_text_can_be_found(svg: str) -> None:
    assert svg.count('class="text"') > 20


def test_it_is_read_aloud_as_its_label(svg: str) -> None:
    assert svg.startswith("<svg ")
    assert 'role="img" aria-label="What it shows"' in svg
    assert 'aria-label="&lt;b&gt; &amp; &quot;c&quot;"' in draw("x", '<b> & "c"')
    assert 'aria-hidden="true"' in draw("x", "")


def test_its_size_is_in_pixels() -> None:
    assert 'width="350" height="120"' in make_svg(Figure(figsize=(350 / 96, 120 / 96), dpi=96), "x")


def test_the_same_figure_gives_the_same_text(svg: str) -> None:
    assert draw("one") == svg
