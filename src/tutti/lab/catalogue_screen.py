"""The catalogue in a terminal: a table per axis, or everything about one member."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tutti.lab.catalogue import PRESETS_AXIS, PRICE_HEADERS, PRICES, Chapter, Page, Parameter, Price, tabulate
from tutti.lab.docstrings import is_rule, shorten_paper

_LOOK: dict[str, Any] = {
    "box": SIMPLE_HEAD,
    "show_edge": False,
    "pad_edge": False,
    "padding": (0, 2, 0, 0),
    "header_style": "bold",
}
_NAME = "cyan"


# --- a table per axis ------------------------------------------------------------------------------------------------


def make_overview(chapters: list[Chapter]) -> RenderableType:
    """What there is, in a line or two each."""
    shown = [_overview(chapter) for chapter in chapters]
    return Group(*shown, Text("tutti catalogue NAME shows one of them in full.", "dim"))


def _overview(chapter: Chapter) -> RenderableType:
    parts: list[RenderableType] = [_heading(chapter), Text(), _members(chapter), Text()]
    if prices := [price for page in chapter.pages for price in page.prices]:
        parts += [_prices(prices), Text()]
    return Group(*parts)


def _heading(chapter: Chapter) -> Text:
    where = f" Each stands as {' or '.join(chapter.parts)}." if chapter.parts else ""
    return Text.assemble((chapter.axis.upper(), "bold"), "  ", chapter.summary, (where, "dim"))


def _members(chapter: Chapter) -> Table:
    presets = chapter.axis == PRESETS_AXIS
    papers = not presets and any(page.papers for page in chapter.pages)
    table = Table(**_LOOK)
    table.add_column("name", style=_NAME, no_wrap=True)
    table.add_column("short for" if presets else "what it is", overflow="fold")
    if papers:
        table.add_column("paper", style="dim", max_width=28)
    for page in chapter.pages:
        row = [Text(page.name), Text(page.spec if presets else page.summary)]
        table.add_row(*row, *([Text("\n".join(map(shorten_paper, page.papers)))] if papers else []))
    return table


# --- one member ------------------------------------------------------------------------------------------------------


def make_details(chapters: list[Chapter]) -> RenderableType:
    """Every member in full, one below the other."""
    pages = [_details(page) for chapter in chapters for page in chapter.pages]
    return Group(*(part for page in pages for part in (page, Text())))


def _details(page: Page) -> RenderableType:
    title = Text.assemble((page.name, f"bold {_NAME}"), "  ", (page.noun, "dim"))
    blocks = [_block(block) for block in (page.text or page.summary).split("\n\n")]
    spaced = [part for block in blocks for part in (block, Text())]
    return Group(title, Text(), *spaced, _facts(page))


def _block(block: str) -> RenderableType:
    return Padding(Text(textwrap.dedent(block), "green"), (0, 0, 0, 4)) if is_rule(block) else Text(block)


def _facts(page: Page) -> Table:
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("short for" if page.axis == PRESETS_AXIS else "spec", Text(page.spec, _NAME))
    if page.parameters:
        rows.add_row("fields", Padding(_parameters(page.parameters), (0, 0, 1, 0)))
    if page.prices:
        rows.add_row("cost", Padding(_prices(page.prices), (0, 0, 1, 0)))
    for label, lines in (("traits", page.traits), ("paper", page.papers)):
        if lines:
            rows.add_row(label, Text("\n".join(lines)))
    rows.add_row("file", Text(f"tutti/{page.file}"))
    return rows


def _parameters(parameters: tuple[Parameter, ...]) -> Table:
    table = Table(**_LOOK)
    for header in ("name", "default", "takes"):
        table.add_column(header, style=_NAME if header == "name" else None, overflow="fold")
    for each in parameters:
        table.add_row(*(Text(text) for text in (each.name, each.default, each.kind)))
    return table


def _prices(prices: Iterable[Price]) -> RenderableType:
    table = Table(**_LOOK)
    for header in PRICE_HEADERS:
        table.add_column(header, style=_NAME if header == "route" else None, overflow="fold")
    for row in tabulate(prices):
        table.add_row(*map(Text, row))
    return Group(table, Text(PRICES, "dim"))
