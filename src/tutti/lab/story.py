"""A reproduction or a study for readers: its tables in a terminal, a report, and a page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table as Screen
from rich.text import Text

from tutti.lab.experiment import Results
from tutti.lab.export import write_whole
from tutti.lab.inquiry import Inquiry, Statement, Story
from tutti.lab.labels import describe_conditions
from tutti.lab.network import HEADER, describe_hosts, find_doubts
from tutti.lab.record import Record
from tutti.lab.report.conditions import make_conditions
from tutti.lab.report.markdown import MarkdownPage
from tutti.lab.report.page import fill_page
from tutti.lab.report.parts import Code, Paragraph, Part, Section, Table

_COLOURS = {"reproduced": "green", "not reproduced": "yellow", "wrong": "red", "holds": "green", "does not hold": "red"}
_HEADERS = {"text": "claim", "ours": "here"}  # the others are called what their field is
_NOT_IN_TERMINAL = "why"  # as it takes more room than a terminal has


# --- the terminal ----------------------------------------------------------------------------------------------------


def make_claims_table(story: Story) -> Screen:
    table = _new_screen()
    rows = [{key: text for key, text in asdict(c).items() if key != _NOT_IN_TERMINAL} for c in story.claims]
    for key in rows[0]:
        if key == "verdict":
            table.add_column(key, no_wrap=True)
        else:
            table.add_column(_HEADERS.get(key, key), ratio=3 if key == "text" else 2)
    for row in rows:
        table.add_row(*(Text(text, _COLOURS[text] if key == "verdict" else "") for key, text in row.items()))
    return table


def make_screen_table(table: Table) -> Screen:
    """The same table as in the report, without its caption, which is wider."""
    screen = _new_screen()
    for index, header in enumerate(table.header):
        screen.add_column(Text(header), justify="right" if index else "left")
    for row in table.rows:
        screen.add_row(*(Text(cell if isinstance(cell, str) else cell.text) for cell in row))
    return screen


def _new_screen() -> Screen:
    return Screen(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")


# --- report and page -------------------------------------------------------------------------------------------------


def write_page(
    name: str, inquiry: Inquiry, story: Story, results: Results, out: Path, page: Path | None, command: str = ""
) -> Path:
    """The report beside the records, and the page where one is asked for; returns the report's place.

    `command` is what makes all of it, where the runs were made by several.
    """
    records = [results[job][0] for job in results]
    command = _shorten(command or records[0].command)
    report = out / "report.html"
    sections = [_make_findings(story, results.all()), *_make_claims(story.claims), *story.sections]
    write_whole(_fill_report(inquiry, records, sections), report)
    if page is not None:
        markdown = MarkdownPage(name, inquiry.title)
        markdown.add_text(inquiry.introduce(command))
        markdown.add([*sections, _make_conditions(results.all(), command)])
        markdown.write(page)
    return report


def _fill_report(inquiry: Inquiry, records: list[Record], sections: Sequence[Section]) -> str:
    return fill_page(records, inquiry.title, [*sections, *inquiry.show_runs(records), make_conditions(records)])


def _make_findings(story: Story, records: list[Record]) -> Section:
    doubts = dict.fromkeys(doubt for record in records for doubt in find_doubts(record.launch.get("network")))
    return Section("Finding", [Paragraph(story.finding, "lead"), *map(Paragraph, doubts)])


def _make_claims(claims: Sequence[Statement]) -> list[Section]:
    """Nothing where nothing is claimed."""
    rows = [asdict(claim) for claim in claims]
    tables = [Table([_HEADERS.get(key, key) for key in row], [[*each.values()] for each in rows]) for row in rows[:1]]
    return [Section("Claim by claim", [table]) for table in tables]


def _make_conditions(records: list[Record], command: str) -> Section:
    parts: list[Part] = [Paragraph(describe_conditions(records) + ".")]
    known = [record.launch["network"] for record in records if "network" in record.launch]  # old records have none
    for asked, network in {network["asked"]: network for network in known}.items():
        if network.get("measured"):
            caption = f"{asked}: asked for and measured at start; rates in Mbit/s."
            parts.append(Table(HEADER, describe_hosts(network), caption))
    parts.append(Code(command))
    return Section("Conditions", parts)


def _shorten(command: str) -> str:
    """Without where its results went and what it kept or said meanwhile, which is nobody else's affair."""
    return re.sub(r" --(?:(?:page|out|json)[ =]\S+|quiet|fresh)", "", command)
