"""In a terminal of 80 columns nothing is cut off, and nothing in a rule is taken for markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from tutti.lab.catalogue import Chapter, Page, Parameter, Price, read_catalogue, select
from tutti.lab.catalogue_screen import make_details, make_overview

WIDTHS = pytest.mark.parametrize("width", [80, 110])


@pytest.fixture(scope="module")
def chapters() -> list[Chapter]:
    return read_catalogue()


def show(what: RenderableType, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, record=True, highlight=False)
    console.print(what)
    return console.export_text()


def words(text: str) -> str:
    return " ".join(text.split())


@WIDTHS
def test_every_member_has_its_line(chapters: list[Chapter], width: int) -> None:
    text = show(make_overview(chapters), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    firsts = [line.split()[0] for line in text.splitlines() if line.strip()]
    for chapter in chapters:
        assert chapter.axis.upper() in firsts
        assert {page.name for page in chapter.pages} <= set(firsts)


def test_the_overview_has_papers_costs_and_what_presets_stand_for(chapters: list[Chapter]) -> None:
    lines = [words(line) for line in show(make_overview(chapters)).splitlines()]
    assert any(line.startswith("ring Ring all-reduce") and line.endswith("Patarasuk and Yuan 2009") for line in lines)
    assert "ring 2, 6, 14 1, 1.5, 1.75 2, 6, 14" in lines
    assert "ddp gradient-average(all-reduce(ring))" in lines


def test_an_axis_without_papers_has_no_column_for_them(chapters: list[Chapter]) -> None:
    assert "paper" not in show(make_overview(select(chapters, "networks")))


@WIDTHS
def test_every_member_in_full(chapters: list[Chapter], width: int) -> None:
    text = show(make_details(chapters), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    said = words(text)
    for page in (page for chapter in chapters for page in chapter.pages):
        for piece in (page.summary, *page.rule.splitlines(), *page.papers, *page.traits):
            assert words(piece) in said, f"{page.name}: {piece}"


def test_one_member_in_full() -> None:
    page = Page(
        "routes",
        "route",
        "zigzag",
        "zigzag",
        "To and fro.",
        text="To and fro. And again.\n\n    x <- [bold]x[/bold] / n",
        rule="x <- [bold]x[/bold] / n",
        papers=('Ant, "Title" (1999)',),
        traits=("whole things meet",),
        parameters=(Parameter("width", "size", "2MiB"),),
        prices=(Price("zigzag", 2, 1, 0.5, 1.0), Price("zigzag", 4, 3, 0.75, 3.0)),
        file="routes/zigzag.py",
    )
    lines = show(make_details([Chapter("routes", "Roads.", (page,))])).splitlines()
    assert [words(line) for line in lines if line.strip()] == [
        "zigzag route",
        "To and fro. And again.",
        "x <- [bold]x[/bold] / n",
        "spec zigzag",
        "fields name default takes",
        "─" * len(words(lines[8])),
        "width 2MiB size",
        "cost route rounds busiest link total",
        "─" * len(words(lines[12])),
        "zigzag 1, 3 0.5, 0.75 1, 3",
        "for 2, 4, 8 workers; bytes as multiples of S, the size of the buffer",
        "traits whole things meet",
        'paper Ant, "Title" (1999)',
        "file tutti/routes/zigzag.py",
    ]
    assert "    x <- [bold]x[/bold] / n" in lines[4]


def test_a_preset_says_what_it_is_short_for(chapters: list[Chapter]) -> None:
    text = show(make_details(select(chapters, "ring")))
    assert "short for  gradient-average(all-reduce(ring), overlap=false)" in text
    assert "rounds 2(n-1)" in text
