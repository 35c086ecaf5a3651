"""Parts write what they are given and nothing else: every sign that means something in HTML is written as a sign."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import pytest

from tutti.lab.report.parts import Bullets, Cell, Code, Heading, Paragraph, Part, Section, Table, Terms

EVIL = "<script>alert('x')</script> & \"so on\""


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.parametrize(
    "part",
    [
        Paragraph(EVIL),
        Bullets([EVIL]),
        Heading(EVIL),
        Code(EVIL),
        Terms([(EVIL, [EVIL])]),
        Table([f"{EVIL}\n{EVIL}"], [[Cell(EVIL, note=EVIL)]], EVIL),
        Section(EVIL, [Paragraph(EVIL)]),
    ],
    ids=lambda part: type(part).__name__,
)
def test_no_text_becomes_markup(part: Part) -> None:
    tags = Tags(part.html("x"))
    assert "script" not in tags.opened
    assert EVIL in tags.words


def test_a_section_names_its_parts() -> None:
    html = Section("One", [Heading("a"), Heading("b")]).html("s1")
    assert re.findall(r' id="(.*?)"', html) == ["s1", "s1-1", "s1-2"]


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    html = Paragraph("after 235 ms, 82 % of 1.5 s or 3 steps in 40 KiB").html("x")
    assert "235\u00a0ms, 82\u00a0% of 1.5\u00a0s or 3 steps in 40\u00a0KiB" in html


def test_no_bullets_are_no_list() -> None:
    assert Bullets([]).html("x") == ""


# --- tables ----------------------------------------------------------------------------------------------------------


def cells(html: str) -> list[tuple[str, str | None]]:
    """(text, what it sorts by) of the body."""
    body = html.partition("<tbody>")[2]
    found = re.findall(r"<t[dh]([^>]*)>(.*?)</t[dh]>", body)
    keys = [re.search(r'data-value="(.*?)"', attributes) for attributes, _ in found]
    return [(unescape(text), key and key[1]) for (_, text), key in zip(found, keys, strict=True)]


def test_a_column_of_numbers_sorts_by_them() -> None:
    html = Table(["name", "size"], [["a", "1,200"], ["b", "–"], ["c", "7.5 %"]]).html("x")
    assert cells(html) == [("a", None), ("1,200", "1200.0"), ("b", None), ("–", ""), ("c", None), ("7.5 %", "7.5")]
    assert html.count('class="number"') == 4


def test_a_column_with_any_word_sorts_by_its_text() -> None:
    html = Table(["size"], [["1"], ["many"]]).html("x")
    assert cells(html) == [("1", None), ("many", None)]
    assert "number" not in html


def test_sentences_get_room() -> None:
    html = Table(
        ["verdict", "why"], [["yes", "It takes the larger part of a step than it did on other machines."]]
    ).html("x")
    assert html.count('class="long"') == 2


def test_a_cell_may_sort_by_something_else() -> None:
    html = Table(["size"], [[Cell("1 KiB", 1024)], [Cell("900 B", 900)], [Cell("–", float("nan"))]]).html("x")
    assert cells(html) == [("1 KiB", "1024"), ("900 B", "900"), ("–", "")]


def test_a_header_is_a_button_with_its_unit_below() -> None:
    html = Table(["step\nms"], [["1"]]).html("x")
    assert '<button type="button">step<small>ms</small></button>' in html


def test_a_table_without_rows() -> None:
    assert "<tbody>" in Table(["a"], []).html("x")
