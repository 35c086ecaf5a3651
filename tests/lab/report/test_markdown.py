"""Every part of a page has a form in Markdown, tables keep their columns, and nothing is half-written."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from tutti.lab.report import parts
from tutti.lab.report.chart import Chart, line_key
from tutti.lab.report.markdown import MarkdownPage
from tutti.lab.report.parts import Bullets, Cell, Code, Heading, Paragraph, Part, Section, Table, Terms


def write(folder: Path, *of: Part) -> str:
    page = MarkdownPage("page", "A title")
    page.add([Section("A section", of)])
    return page.write(folder).read_text()


def draw(axes: Axes) -> None:
    axes.plot([1, 2], [3, 4])


def break_down(axes: Axes) -> None:
    raise ZeroDivisionError(axes)


CHART = Chart("How it went", [draw], "Up and up.", keys=[line_key("ours", 0), line_key("theirs", 1)])
BROKEN = Chart("How it broke", [break_down], "Never seen.")


def test_title_and_sections_are_headings(tmp_path: Path) -> None:
    page = MarkdownPage("page", "A title")
    page.add_text("In short.")
    page.add([Section("One", [Paragraph("First.")]), Section("Two", [Paragraph("Second.")])])
    path = page.write(tmp_path)
    assert path == tmp_path / "page.md"
    assert path.read_text() == "# A title\n\nIn short.\n\n## One\n\nFirst.\n\n## Two\n\nSecond.\n"


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (Paragraph("Small print.", "note"), "Small print."),
        (Paragraph("The point."), "The point."),
        (Paragraph("The point.", "lead"), "**The point.**"),
        (Heading("Inside"), "### Inside"),
        (Bullets(["one", "two"]), "- one\n- two"),
        (Code("tutti run ddp"), "```sh\ntutti run ddp\n```"),
        (Terms([("speed", ["fast", "slow (ring)"])]), "- speed: fast; slow (ring)"),
        (Table(("a", "b"), [["1", "2"]]), "| a | b |\n| --- | --- |\n| 1 | 2 |"),
        (Table(("a",), [["1"]], "What it is."), "What it is.\n\n| a |\n| --- |\n| 1 |"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_every_part_has_its_form(part: Part, text: str, tmp_path: Path) -> None:
    assert write(tmp_path, part) == f"# A title\n\n## A section\n\n{text}\n"


def test_no_part_of_a_page_is_forgotten(tmp_path: Path) -> None:
    kinds = [kind for kind in vars(parts).values() if isinstance(kind, type) and kind.__module__ == parts.__name__]
    shown = [kind for kind in kinds if "html" in vars(kind) and kind not in (Part, Section)]
    samples: dict[type, Part] = {
        type(part): part
        for part in (
            Paragraph("x"),
            Heading("x"),
            Bullets(["x"]),
            Code("x"),
            Terms([("x", ["x"])]),
            Table(["x"], [["x"]]),
        )
    }
    assert set(shown) == set(samples)
    for part in samples.values():
        assert "x" in write(tmp_path, part)


def test_a_part_without_a_form_is_refused(tmp_path: Path) -> None:
    class Sculpture:
        def html(self, name: str) -> str:
            return name

    with pytest.raises(TypeError, match="a Sculpture has no form in Markdown"):
        write(tmp_path, Sculpture())


def test_cells_cannot_break_the_table(tmp_path: Path) -> None:
    rows = [["a|b", Cell("3", 3.0)], [Cell("two\nlines"), Cell("ring", note="its spec")]]
    text = write(tmp_path, Table(("name\nunit", "value"), rows))
    assert "| name, unit | value |\n| --- | --- |\n| a\\|b | 3 |\n| two, lines | ring (its spec) |\n" in text


def test_empty_parts_leave_no_gap(tmp_path: Path) -> None:
    assert write(tmp_path, Bullets([]), Paragraph("Then this.")) == "# A title\n\n## A section\n\nThen this.\n"


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_charts_are_pictures_beside_the_page(tmp_path: Path) -> None:
    text = write(tmp_path, CHART, Paragraph("Between."), CHART)
    assert "![How it went](page-1.png)\n\n*How it went.* Up and up.\n\nBetween." in text
    assert "![How it went](page-2.png)" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page-1.png", "page-2.png", "page.md"]
    for path in tmp_path.glob("*.png"):
        header = path.read_bytes()[:24]
        assert header[:4] == b"\x89PNG"
        width, height = struct.unpack(">II", header[16:])
        assert width > 1000
        assert height > 300


def test_the_legend_is_in_the_picture(tmp_path: Path) -> None:
    write(tmp_path, CHART)
    with_legend = (tmp_path / "page-1.png").read_bytes()
    write(tmp_path, Chart(CHART.title, CHART.panels, CHART.caption))
    assert (tmp_path / "page-1.png").read_bytes() != with_legend


def test_the_same_sections_make_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, CHART)
    for name in ("page.md", "page-1.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_page_that_cannot_be_drawn_leaves_the_old_one_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, CHART)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ZeroDivisionError):
        write(tmp_path, Chart("Another", [draw, draw], "Other."), BROKEN)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
