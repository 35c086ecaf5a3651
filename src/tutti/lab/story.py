"""A reproduction for readers: the table of verdicts in a terminal, a report, and a page of Markdown."""

from __future__ import annotations

import re
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table as Screen
from rich.text import Text

from tutti.lab.experiment import Results
from tutti.lab.labels import describe_conditions
from tutti.lab.network import HEADER, describe_hosts, find_doubts
from tutti.lab.record import Record
from tutti.lab.report.markdown import MarkdownPage
from tutti.lab.report.page import write_report
from tutti.lab.report.parts import Code, Paragraph, Part, Section, Table
from tutti.lab.reproductions.base import Reproduction, Story

_COLOURS = {"reproduced": "green", "not reproduced": "yellow", "wrong": "red"}


def make_claims_table(story: Story) -> Screen:
    table = Screen(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in ("claim", "published", "here"):
        table.add_column(name, ratio=3 if name == "claim" else 2)
    table.add_column("verdict", no_wrap=True)
    for claim in story.claims:
        words = map(Text, (claim.text, claim.published, claim.ours))
        table.add_row(*words, Text(claim.verdict, _COLOURS[claim.verdict]))
    return table


def write_page(
    name: str, reproduction: Reproduction, story: Story, results: Results, out: Path, page: Path | None
) -> Path:
    """The report beside the records, and the page where one is asked for; returns the report's place."""
    records = [results[job][0] for job in results]
    report = out / "report.html"
    finding, sections = _make_findings(story, results.all()), [_make_claims(story), *story.sections]
    write_report(records, report, reproduction.title, sections, finding)
    if page is not None:
        markdown = MarkdownPage(name, reproduction.title)
        command = _shorten(records[0].command)
        markdown.add_text(
            f"What {reproduction.document} published, measured here by `{command}`. Seconds do not travel from machine "
            "to machine; ratios do."
        )
        markdown.add([finding, *sections, _make_conditions(results.all())])
        markdown.write(page)
    return report


def _make_findings(story: Story, records: list[Record]) -> Section:
    doubts = dict.fromkeys(doubt for record in records for doubt in find_doubts(record.launch.get("network")))
    return Section("Finding", [Paragraph(story.finding, "lead"), *map(Paragraph, doubts)])


def _make_claims(story: Story) -> Section:
    rows = [[c.text, c.published, c.ours, c.verdict, c.why] for c in story.claims]
    return Section("Claim by claim", [Table(("claim", "published", "here", "verdict", "why"), rows)])


def _make_conditions(records: list[Record]) -> Section:
    parts: list[Part] = [Paragraph(describe_conditions(records) + ".")]
    known = [record.launch["network"] for record in records if "network" in record.launch]  # old records have none
    for asked, network in {network["asked"]: network for network in known}.items():
        if network.get("measured"):
            caption = f"{asked}: asked for and measured at start; rates in Mbit/s."
            parts.append(Table(HEADER, describe_hosts(network), caption))
    parts.append(Code(_shorten(records[0].command)))
    return Section("Conditions", parts)


def _shorten(command: str) -> str:
    """Without where its results went, which is nobody else's affair."""
    return re.sub(r" --(?:page|out|json)[ =]\S+", "", command)
