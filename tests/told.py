"""What every inquiry has to tell, whatever it found: sound sentences, tables, charts, a report and a page.

The contracts of reproductions and of studies hold theirs against it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tutti.lab.experiment import Results
from tutti.lab.inquiry import Inquiry, Story
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Table
from tutti.lab.report.svg import LOOK
from tutti.lab.story import write_page

FILE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,59}")
SENTENCE = re.compile(r"\S[^\n]*\.")
ANOTHER = re.compile(r"[.!?] +[A-Z]")  # where a second sentence begins


class Told(NamedTuple):
    """An inquiry by its name, and all it tells."""

    name: str
    inquiry: Inquiry
    story: Story
    folder: Path  # with report.html and the page

    @property
    def report(self) -> str:
        return (self.folder / "report.html").read_text()

    @property
    def page(self) -> str:
        return (self.folder / f"{self.name}.md").read_text()

    @property
    def tables(self) -> list[Table]:
        return [part for section in self.story.sections for part in section.parts if isinstance(part, Table)]

    @property
    def charts(self) -> list[Chart]:
        return [part for section in self.story.sections for part in section.parts if isinstance(part, Chart)]


def tell(name: str, inquiry: Inquiry, results: Results, folder: Path) -> Told:
    story = inquiry.tell(results)
    few = Results({name: results[name] for name in list(results)[:1]})  # whose own charts are other tests' business
    write_page(name, inquiry, story, few, folder, folder)
    return Told(name, inquiry, story, folder)


# --- words and tables -------------------------------------------------------------------------------------------------


def check_finding(told: Told) -> None:
    """One sentence with a figure."""
    assert SENTENCE.fullmatch(told.story.finding)
    assert not ANOTHER.search(told.story.finding), told.story.finding
    assert re.search(r"\d", told.story.finding)


def check_claims(told: Told, verdicts: Sequence[str]) -> None:
    """What it is held against, a figure of ours, a verdict and a reason."""
    assert told.story.claims
    assert len({claim.text for claim in told.story.claims}) == len(told.story.claims)
    for claim in told.story.claims:
        fields = dataclasses.asdict(claim)
        assert list(fields)[-3:] == ["ours", "verdict", "why"]
        assert all(fields.values())
        assert fields["verdict"] in verdicts
        assert SENTENCE.fullmatch(claim.text)
        assert SENTENCE.fullmatch(fields["why"])
        assert re.search(r"\d", fields["ours"]), fields["ours"]
        assert "nan" not in " ".join(fields.values()).split()
    json.dumps([dataclasses.asdict(claim) for claim in told.story.claims])


def check_tables(told: Told) -> None:
    """A caption, and a cell for every column."""
    for table in told.tables:
        assert table.caption.endswith(".")
        assert table.rows
        assert len(set(table.header)) == len(table.header), table.header
        assert {len(row) for row in table.rows} == {len(table.header)}, table.caption


# --- charts -----------------------------------------------------------------------------------------------------------


def check_charts(told: Told, narrow: bool) -> None:
    """They show all there is, and no text is cut off or overlaps another."""
    assert told.charts, "there is at least one figure"
    for chart in told.charts:
        figure = lay_out(chart, narrow)
        for axes in figure.axes:
            assert axes.get_xlabel() or axes.get_ylabel()
            assert holds(axes.get_xlim(), axes.dataLim.intervalx), f"{chart.title} is cut off"
            assert holds(axes.get_ylim(), axes.dataLim.intervaly), f"{chart.title} is cut off"
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
        for text, box in boxes:
            assert figure.bbox.fully_contains(box.x0, box.y0), f"{chart.title}: {text} is cut off"
            assert figure.bbox.fully_contains(box.x1, box.y1), f"{chart.title}: {text} is cut off"
        for (one, first), (other, second) in itertools.combinations(boxes, 2):
            assert Bbox.intersection(first, second) is None, f"{chart.title}: {one} and {other} overlap"


def holds(view: Sequence[float], data: Sequence[float]) -> bool:
    slack = 1e-6 * abs(view[1] - view[0])
    return min(view) - slack <= min(data) and max(data) <= max(view) + slack


def lay_out(chart: Chart, narrow: bool) -> Figure:
    figure = chart.draw(narrow)
    with matplotlib.rc_context(LOOK):
        FigureCanvasAgg(figure).draw()
    return figure


def texts(figure: Figure) -> list[Text]:
    """All that is really drawn, but not what stands on lines and bars."""
    found = [text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in shown(axis)]
    return [text for text in found if text.get_visible() and text.get_text()]


def shown(axis: Axis) -> list[Text]:
    low, high = sorted(axis.get_view_interval())
    labels = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [*labels, axis.label]


# --- the report -------------------------------------------------------------------------------------------------------

_VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Refuses tags that do not match; keeps the text, ids and references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        for value in given.values():
            self.references += re.findall(r"url\(#([^)]+)\)", value)
        for key in ("href", "aria-labelledby"):
            self.references += [given[key].removeprefix("#")] if key in given and "data:" not in given[key] else []


def check_report(told: Told) -> None:
    """Sound, and with everything in it."""
    reader = Reader(told.report)
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    assert set(reader.references) <= set(reader.ids)
    words = plain(" ".join(reader.words))
    for said in all_said(told):
        assert plain(said) in words


def all_said(told: Told) -> Iterator[str]:
    yield told.story.finding
    yield from (section.title for section in told.story.sections)
    for claim in told.story.claims:
        yield from dataclasses.astuple(claim)
    for cell in (cell for table in told.tables for row in table.rows for cell in row):
        yield cell if isinstance(cell, str) else cell.text


def plain(text: str) -> str:
    return " ".join(text.split())


# --- the page ---------------------------------------------------------------------------------------------------------


def check_page(told: Told) -> None:
    """Its sections, its links, and nothing unfinished."""
    headings = re.findall(r"^## (.+)$", told.page, flags=re.MULTILINE)
    own = [section.title for section in told.story.sections]
    assert headings == ["Finding", "Claim by claim", *own, "Conditions"]
    assert f"# {told.inquiry.title}\n" in told.page
    assert not list(told.folder.glob("*.draft"))
    assert not re.search(r"\bnan\b|None|<[a-z]+ object|\{[a-z_]+\}", told.page)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", told.page):
        assert "://" in target or (told.folder / target).exists(), target


def check_pictures(told: Told) -> None:
    """Every chart of the page is a picture beside it."""
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", told.page)
    assert len(pictures) == len(told.charts)
    assert sorted(pictures) == sorted(path.name for path in told.folder.glob("*.png"))
    for name in pictures:
        assert (told.folder / name).read_bytes()[:4] == b"\x89PNG"


def check_rows(told: Told) -> None:
    """Every row of the page has as many columns as its table."""
    blocks = [block for block in told.page.split("\n\n") if block.startswith("|")]
    assert len(blocks) >= 1 + len(told.tables)
    for block in blocks:
        rows = [re.split(r"(?<!\\)\|", line) for line in block.splitlines()]
        assert len({len(row) for row in rows}) == 1, block
        assert set(rows[1][1:-1]) == {" --- "}
