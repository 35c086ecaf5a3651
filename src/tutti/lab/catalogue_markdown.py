"""The catalogue as Markdown: docs/catalogue.md is this text, and a test says so when it is not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tutti.lab.catalogue import PRESETS_AXIS, PRICE_HEADERS, PRICES, Chapter, Page, Price, tabulate
from tutti.lab.docstrings import is_rule, shorten_paper

_OPENING = """# Catalogue

What specs are made of: every member of every axis, read from its source. This page is what `tutti catalogue --markdown`
prints; to change it, change the docstrings ([adding.md](adding.md) says how). S is the size of a buffer in bytes, n the
number of workers."""


def make_markdown(chapters: list[Chapter]) -> str:
    """A section per axis: its table, then every member in full."""
    contents = " · ".join(f"[{chapter.axis}](#{chapter.axis})" for chapter in chapters)
    blocks = [_OPENING, contents, *(block for chapter in chapters for block in _chapter(chapter))]
    return "\n\n".join(blocks) + "\n"


def _chapter(chapter: Chapter) -> list[str]:
    where = f" Each stands as {' or '.join(chapter.parts)}." if chapter.parts else ""
    blocks = [f"## {chapter.axis.capitalize()}", _prose(chapter.summary + where)]
    if chapter.axis == PRESETS_AXIS:
        rows = [(_code(page.name), _code(page.spec)) for page in chapter.pages]
        return [*blocks, _table(("name", "short for"), rows)]
    blocks.append(_overview(chapter.pages))
    if prices := [price for page in chapter.pages for price in page.prices]:
        blocks += _prices(prices)
    return [*blocks, *(block for page in chapter.pages for block in _page(page))]


def _overview(pages: Sequence[Page]) -> str:
    papers = any(page.papers for page in pages)
    rows = [(_link(page), _prose(page.summary), "; ".join(map(shorten_paper, page.papers))) for page in pages]
    headers = ("name", "what it is", "paper") if papers else ("name", "what it is")
    return _table(headers, [row[: len(headers)] for row in rows])


def _link(page: Page) -> str:
    return f"[`{page.name}`](#{page.name}-{page.noun})"


# --- one member ------------------------------------------------------------------------------------------------------


def _page(page: Page) -> list[str]:
    text = [block if is_rule(block) else _prose(block) for block in page.text.split("\n\n")]
    blocks = [f"### {page.name} ({page.noun})", *text]
    if page.parameters:
        rows = [(_code(each.name), _code(each.default), each.kind) for each in page.parameters]
        blocks.append(_table(("field", "default", "takes"), rows))
    if page.prices:
        blocks += _prices(page.prices)
    return [*blocks, "\n".join(_facts(page))]


def _facts(page: Page) -> list[str]:
    facts = [f"Spec: {_code(page.spec)}, in [{page.file}](../src/tutti/{page.file})"]
    facts += [_prose(trait[0].upper() + trait[1:]) for trait in page.traits]
    facts += [f"Paper: {_prose(paper)}" for paper in page.papers]
    return [f"- {fact}." for fact in facts]


def _prices(prices: Iterable[Price]) -> list[str]:
    rows = [(_code(spec), *figures) for spec, *figures in tabulate(prices)]
    return [f"Cost {PRICES}:", _table(PRICE_HEADERS, rows)]


# --- Markdown's own --------------------------------------------------------------------------------------------------


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


def _prose(text: str) -> str:
    """Signs that Markdown would take for its own are escaped, outside of code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"[*<\[\]]|\b_|_\b", r"\\\g<0>", part) for part in parts)
