"""docs/catalogue.md is what the sources say today, and Markdown takes nothing in it for its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tutti.lab.catalogue import Chapter, Page, Parameter, read_catalogue, select
from tutti.lab.catalogue_markdown import make_markdown

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "catalogue.md"


@pytest.fixture(scope="module")
def chapters() -> list[Chapter]:
    return read_catalogue()


def test_the_document_is_not_stale(chapters: list[Chapter]) -> None:
    same = DOCUMENT.read_text() == make_markdown(chapters)
    assert same, "docs/catalogue.md is stale: tutti catalogue --markdown > docs/catalogue.md"


def test_every_member_has_a_section_and_every_link_leads_to_one(chapters: list[Chapter]) -> None:
    text = make_markdown(chapters)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) == set(anchors) - {"catalogue"}
    pages = [page for chapter in chapters if chapter.axis != "presets" for page in chapter.pages]
    assert [heading for heading in headings if "(" in heading] == [f"{page.name} ({page.noun})" for page in pages]


def test_rows_have_as_many_cells_as_their_table(chapters: list[Chapter]) -> None:
    tables = [block.splitlines() for block in make_markdown(chapters).split("\n\n") if block.startswith("|")]
    assert len(tables) > 10
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
        assert set(table[1]) <= set("| -")


def test_one_axis_alone(chapters: list[Chapter]) -> None:
    text = make_markdown(select(chapters, "aggregators"))
    assert "## Aggregators" in text
    assert "## Models" not in text


def test_signs_of_markdown_are_escaped_outside_of_code_and_rules() -> None:
    page = Page(
        "routes",
        "route",
        "zigzag",
        "zigzag",
        "Any of a|b.",
        text="Takes 2 * S, a <- b and x_i, [not a link], `2 * S`.\n\n    rounds 2 * n | [n]",
        parameters=(Parameter("by", "one of a | b", "a"),),
        file="routes/zigzag.py",
    )
    text = make_markdown([Chapter("routes", "Roads.", (page,))])
    assert r"Takes 2 \* S, a \<- b and x_i, \[not a link\], `2 * S`." in text
    assert "\n\n    rounds 2 * n | [n]\n\n" in text
    assert r"| `by` | `a` | one of a \| b |" in text
    assert r"| [`zigzag`](#zigzag-route) | Any of a\|b. |" in text
