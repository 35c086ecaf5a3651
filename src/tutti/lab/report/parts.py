"""What a page is made of: sections of paragraphs, lists, tables and whatever else writes itself as HTML.

A table can be sorted by any of its columns. A cell is a text, or a `Cell` where it sorts by something that its text
does not say. A column whose every text is a number stands to the right and sorts by that number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from tutti.lab.units import NOTHING

_SENTENCE = 40  # characters, from which on a text in a table wants room
_UNIT = re.compile(r"(?<=\d) (?=(?:[µm]?s|B|[KMGT]iB)\b|%)")


class Part(Protocol):
    """Anything that a section can hold."""

    def html(self, name: str) -> str:
        """Itself; `name` is its own on the page, for ids."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part]

    def html(self, name: str) -> str:
        inside = "\n".join(part.html(f"{name}-{index}") for index, part in enumerate(self.parts, start=1))
        return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(self.title)}</h2>\n{inside}\n</section>'


@dataclass(frozen=True)
class Paragraph:
    text: str
    look: str = ""  # "lead" for the most important one, "note" for small print

    def html(self, name: str) -> str:
        return f"<p{_class(self.look)}>{_prose(self.text)}</p>"


@dataclass(frozen=True)
class Bullets:
    texts: Sequence[str]

    def html(self, name: str) -> str:
        return f"<ul>{''.join(f'<li>{_prose(text)}</li>' for text in self.texts)}</ul>" if self.texts else ""


@dataclass(frozen=True)
class Heading:
    """Of a part of a section."""

    text: str

    def html(self, name: str) -> str:
        return f'<h3 id="{name}">{escape(self.text)}</h3>'


@dataclass(frozen=True)
class Code:
    """What can be typed or copied as it is."""

    text: str

    def html(self, name: str) -> str:
        return f"<pre><code>{escape(self.text)}</code></pre>"


@dataclass(frozen=True)
class Terms:
    """Words, and the lines that stand beside each of them."""

    entries: Sequence[tuple[str, Sequence[str]]]

    def html(self, name: str) -> str:
        rows = (
            f"<dt>{escape(term)}</dt>{''.join(f'<dd>{escape(line)}</dd>' for line in lines)}"
            for term, lines in self.entries
        )
        return f'<dl class="terms">{"".join(f"<div>{row}</div>" for row in rows)}</dl>'


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A text, what it sorts by where that is not the text, and a smaller line under it."""

    text: str
    value: float | None = None
    note: str = ""

    @property
    def number(self) -> float | None:
        """What it sorts by, if that is a number; nan where there is nothing."""
        if self.value is not None:
            return self.value
        if self.text in ("", NOTHING):
            return math.nan
        try:
            return float(self.text.replace(",", "").removesuffix("%"))
        except ValueError:
            return None


@dataclass(frozen=True)
class Table:
    """The second line of a header is its unit; the caption says what the table shows."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""

    def html(self, name: str) -> str:
        rows = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]
        kinds = [_find_kind([row[column] for row in rows]) for column in range(len(self.header))]
        head = "".join(map(_header, self.header, kinds))
        body = "\n".join(f"<tr>{''.join(map(_cell, row, kinds, range(len(row))))}</tr>" for row in rows)
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        label = escape(self.caption or "table")
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table id="{name}">{caption}\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        )


def _find_kind(cells: list[Cell]) -> str:
    """What a column holds, which is how it looks: numbers, sentences, or words."""
    if all(cell.number is not None for cell in cells) and any(cell.text for cell in cells):
        return "number"
    return "long" if any(len(cell.text) > _SENTENCE for cell in cells) else ""


def _header(text: str, kind: str) -> str:
    words, _, unit = text.partition("\n")
    small = f"<small>{escape(unit)}</small>" if unit else ""
    return f'<th scope="col"{_class(kind)}><button type="button">{escape(words)}{small}</button></th>'


def _cell(cell: Cell, kind: str, column: int) -> str:
    tag = "td" if column else "th"
    scope = "" if column else ' scope="row"'
    value = "" if cell.number is None or not math.isfinite(cell.number) else f"{cell.number!r}"
    key = f' data-value="{value}"' if kind == "number" else ""
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    return f"<{tag}{scope}{_class(kind)}{key}>{escape(cell.text)}{note}</{tag}>"


def _prose(text: str) -> str:
    """No line ends between a number and its unit."""
    return escape(_UNIT.sub("\u00a0", text))


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
