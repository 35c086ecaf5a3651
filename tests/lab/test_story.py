"""An inquiry for readers: the same claims in the terminal, in the report and on the page."""

from __future__ import annotations

import dataclasses
import html
import io
import re
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from rich.console import Console
from sample_records import make_record

from tutti.commands.base import PIPED_WIDTH
from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story
from tutti.lab.record import Record
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Cell, Paragraph, Section, Table
from tutti.lab.reproductions.base import Claim, Reproduction
from tutti.lab.story import make_claims_table, make_screen_table, write_page

CLAIMS = [
    Claim("Fast is fast.", "2.0 s", "1.0 s [twice]", "reproduced", "Because it is."),
    Claim("Slow is fast.", "said, not measured", "9.0 s & more", "not reproduced", "The machine was another."),
    Claim("Nothing is anything.", "0 | 1", "neither", "wrong", "It never was."),
]


class Tiny(Reproduction):
    title = "A small thing"
    document = "a note on small things"
    data = ()

    def jobs(self, quick: bool) -> list[Job]:
        return []

    def tell(self, results: Results) -> Story:
        return Story("It [all] holds.", CLAIMS, SECTIONS)


def draw(axes: Axes) -> None:
    axes.plot([1, 2], [3, 4])


SECTIONS = [Section("Figures", [Table(("what", "how much"), [["this", "1"]]), Chart("Lines", [draw], "Two points.")])]
NETWORK = {
    "asked": "hosts(1Gbit)",
    "measured": [{"host": host, "asked": 1e9, "out": 9.9e8, "in": 9.8e8, "latency": 1e-4} for host in (0, 1)],
}
RESULTS = Results({name: [make_record(name, network=NETWORK) for _ in range(2)] for name in ("ring", "ddp")})


def tell(folder: Path, page: Path | None = None, results: Results = RESULTS) -> Path:
    return write_page("tiny", Tiny(), Tiny().tell(results), results, folder, page)


# --- the terminal -----------------------------------------------------------------------------------------------------


def shown(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(make_claims_table(Story("It holds.", CLAIMS)))
    return out.getvalue()


def test_the_table_shows_every_claim_as_it_is() -> None:
    lines = shown(300).splitlines()
    for claim in CLAIMS:
        (line,) = [line for line in lines if claim.text in line]
        for word in (claim.published, claim.ours, claim.verdict):
            assert word in line


@pytest.mark.parametrize("width", [60, PIPED_WIDTH])
def test_verdicts_stay_whole_where_there_is_little_room(width: int) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    ends = [line.rstrip().rpartition("  ")[2].strip() for line in text.splitlines()]
    assert [end for end in ends if end in ("reproduced", "not reproduced", "wrong")] == [c.verdict for c in CLAIMS]


def test_every_verdict_has_a_colour_of_its_own() -> None:
    cells = [cell for column in make_claims_table(Story("", CLAIMS)).columns[-1:] for cell in column.cells]
    assert len({cell.style for cell in cells}) == len(cells) == 3  # type: ignore[union-attr]


def test_other_tables_are_shown_as_in_the_report() -> None:
    out = io.StringIO()
    table = Table(("way", "[accuracy]"), [["mean", Cell("97.0 ± 0.1", 97.0)], ["sum", "diverged"]], "In [%].")
    Console(file=out, width=60).print(make_screen_table(table))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines[0] == ["way", "[accuracy]"]
    assert lines[2:] == [["mean", "97.0", "±", "0.1"], ["sum", "diverged"]]


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_is_where_it_says_and_has_every_claim(tmp_path: Path) -> None:
    report = tell(tmp_path)
    assert report == tmp_path / "report.html"
    text = html.unescape(report.read_text())
    assert "<h1>A small thing</h1>" in text
    for claim in CLAIMS:
        for word in dataclasses.astuple(claim):
            assert word in text
    for words in ("It [all] holds.", "Claim by claim", "Figures", "Two points.", "from 2 records"):
        assert words in text
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]  # and no page that nobody asked for


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def _without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing it takes longest."""
    monkeypatch.setattr("tutti.lab.story.fill_page", lambda *_: "")


without_report = pytest.mark.usefixtures("_without_report")


@without_report
def test_the_page_is_written_whole(tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page"
    out.mkdir()
    page.mkdir()
    tell(out, page)
    assert sorted(path.name for path in page.iterdir()) == ["tiny-1.png", "tiny.md"]
    text = (page / "tiny.md").read_text()
    headings = re.findall(r"^#+ .*$", text, flags=re.MULTILINE)
    assert headings == ["# A small thing", "## Finding", "## Claim by claim", "## Figures", "## Conditions"]
    assert "a note on small things" in text
    assert "**It [all] holds.**" in text
    assert "![Lines](tiny-1.png)" in text
    for claim in CLAIMS:
        cells = [cell.replace("|", "\\|") for cell in dataclasses.astuple(claim)]
        assert f"| {' | '.join(cells)} |" in text


@without_report
def test_the_page_says_under_which_conditions(tmp_path: Path) -> None:
    tell(tmp_path, tmp_path)
    conditions = (tmp_path / "tiny.md").read_text().partition("## Conditions")[2]
    for words in ("4 workers", "torch 2.13.0", "hosts(1Gbit): asked for and measured", "```sh\ntutti compare\n```"):
        assert words in conditions
    assert conditions.count("| 990 |") == 2  # one row per host, and each network once


@without_report
def test_records_from_before_there_were_networks_have_a_page_too(tmp_path: Path) -> None:
    tell(tmp_path, tmp_path, Results({"old": [make_record("old")]}))
    assert "asked for" not in (tmp_path / "tiny.md").read_text()


@without_report
def test_an_error_leaves_the_old_page(tmp_path: Path) -> None:
    tell(tmp_path, tmp_path)
    before = (tmp_path / "tiny.md").read_bytes()
    bad = Story("It fails.", CLAIMS, [Section("Bad", [Chart("Bad", [lambda axes: axes.no_such()], "Bad.")])])
    with pytest.raises(AttributeError):
        write_page("tiny", Tiny(), bad, RESULTS, tmp_path, tmp_path)
    assert (tmp_path / "tiny.md").read_bytes() == before
    assert not list(tmp_path.glob("*.draft"))


@without_report
def test_what_claims_nothing_has_no_section_of_claims(tmp_path: Path) -> None:
    write_page("tiny", Tiny(), Story("It holds.", [], SECTIONS), RESULTS, tmp_path, tmp_path)
    headings = re.findall(r"^## .*$", (tmp_path / "tiny.md").read_text(), flags=re.MULTILINE)
    assert headings == ["## Finding", "## Figures", "## Conditions"]


def test_runs_are_shown_one_by_one_only_where_the_inquiry_says_so(tmp_path: Path) -> None:
    class Bare(Tiny):
        def show_runs(self, records: list[Record]) -> list[Section]:
            return []

    report = write_page("tiny", Bare(), Bare().tell(RESULTS), RESULTS, tmp_path, None).read_text()
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", report)
    assert headings == ["Finding", "Claim by claim", "Figures", "Conditions"]


@without_report
def test_a_paragraph_is_enough_for_a_section(tmp_path: Path) -> None:
    story = Story("It holds.", CLAIMS[:1], [Section("Words", [Paragraph("Only words.")])])
    write_page("tiny", Tiny(), story, RESULTS, tmp_path, tmp_path)
    assert "Only words." in (tmp_path / "tiny.md").read_text()
    assert not list(tmp_path.glob("*.png"))
