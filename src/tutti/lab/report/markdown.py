"""Sections as Markdown, for pages that are kept with the source; every chart becomes a picture beside the page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

import matplotlib

from tutti.lab.export import write_whole
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Bullets, Cell, Code, Heading, Paragraph, Part, Section, Table, Terms
from tutti.lab.report.svg import LOOK

_DPI = 110
_LEGEND = 120  # letters that fit beside each other above a chart


class MarkdownPage:
    """Collects text; pictures are called `<stem>-1.png` and so on, and written with the page."""

    def __init__(self, stem: str, title: str) -> None:
        self._stem = stem
        self._blocks = [f"# {title}"]
        self._charts: list[Chart] = []

    def add(self, sections: Sequence[Section]) -> None:
        for section in sections:
            self._blocks.append(f"## {section.title}")
            self._blocks += [self._text(part) for part in section.parts]

    def add_text(self, text: str) -> None:
        self._blocks.append(text)

    def write(self, folder: Path) -> Path:
        """Every picture is drawn before the first file is touched."""
        pictures = {folder / f"{self._stem}-{i}.png": _draw(chart) for i, chart in enumerate(self._charts, start=1)}
        for path, picture in pictures.items():
            draft = path.with_suffix(".draft")
            draft.write_bytes(picture)
            draft.replace(path)
        page = folder / f"{self._stem}.md"
        write_whole("\n\n".join(block for block in self._blocks if block) + "\n", page)
        return page

    @singledispatchmethod
    def _text(self, part: Part) -> str:
        raise TypeError(f"a {type(part).__name__} has no form in Markdown")

    @_text.register
    def _(self, part: Paragraph) -> str:
        return f"**{part.text}**" if part.look == "lead" else part.text

    @_text.register
    def _(self, part: Heading) -> str:
        return f"### {part.text}"

    @_text.register
    def _(self, part: Bullets) -> str:
        return "\n".join(f"- {text}" for text in part.texts)

    @_text.register
    def _(self, part: Code) -> str:
        return f"```sh\n{part.text}\n```"

    @_text.register
    def _(self, part: Terms) -> str:
        return "\n".join(f"- {term}: {'; '.join(lines)}" for term, lines in part.entries)

    @_text.register
    def _(self, part: Table) -> str:
        lines = [_row(part.header), _row(["---"] * len(part.header)), *map(_row, part.rows)]
        return "\n".join([*([part.caption, ""] if part.caption else []), *lines])

    @_text.register
    def _(self, part: Chart) -> str:
        self._charts.append(part)
        return f"![{part.title}]({self._stem}-{len(self._charts)}.png)\n\n*{part.title}.* {part.caption}"


def _row(cells: Sequence[str | Cell]) -> str:
    texts = (_words(cell).replace("|", r"\|").replace("\n", ", ") for cell in cells)
    return f"| {' | '.join(texts)} |"


def _words(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell.text} ({cell.note})" if cell.note else cell.text


def _draw(chart: Chart) -> bytes:
    """As PNG, with the legend above the panels, since there is no page to hold it."""
    figure, png = chart.draw(narrow=False), io.BytesIO()
    with matplotlib.rc_context(LOOK):
        if chart.keys:
            handles: list[Any] = [key.artist() for key in chart.keys]
            texts = [key.text for key in chart.keys]
            columns = max(1, min(len(texts), _LEGEND // max(map(len, texts))))
            figure.legend(handles, texts, loc="outside upper center", ncols=columns)
        figure.savefig(png, format="png", dpi=_DPI, facecolor="white")
    return png.getvalue()
