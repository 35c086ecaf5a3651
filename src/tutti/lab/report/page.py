"""A report: one HTML file that needs nothing else, made from records alone.

Everything is inside the file, and a policy in its head forbids it to ask for anything or to run any script but its own.
The same records make the same file.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from tutti import __version__
from tutti.lab.export import write_whole
from tutti.lab.labels import describe_conditions
from tutti.lab.record import Record
from tutti.lab.report.conditions import make_conditions
from tutti.lab.report.consensus import make_consensus
from tutti.lab.report.parts import Section
from tutti.lab.report.sections import make_findings, make_learning, make_results, make_steps, make_traffic
from tutti.lab.report.shares import make_shares

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="note">{subtitle}</p>
</header>
<main>
{sections}
</main>
<footer><p class="note">Written by tutti {version} from {count}.</p></footer>
<script>
{script}</script>
</body>
</html>
"""


def write_report(records: list[Record], path: Path, title: str = "", extra: Sequence[Section] = ()) -> None:
    """Written whole or not at all; `extra` sections stand behind the findings."""
    write_whole(make_page(records, title, extra), path)


def make_page(records: list[Record], title: str = "", extra: Sequence[Section] = ()) -> str:
    if not records:
        return fill_page(records, title, extra)
    return fill_page(records, title, [make_findings(records), *extra, *show_runs(records), make_conditions(records)])


def show_runs(records: list[Record]) -> list[Section]:
    """Everything about the runs one by one, as long as they are few enough to be looked at."""
    makers = (make_results, make_learning, make_consensus, make_shares, make_steps, make_traffic)
    return [section for section in (make(records) for make in makers) if section is not None]


def fill_page(records: list[Record], title: str, sections: Sequence[Section]) -> str:
    """The page around these sections, whatever they are."""
    style, script = _read("look.css"), _read("look.js")
    return _PAGE.format(
        policy=_policy(f"\n{script}"),
        title=escape(title or _make_title(records)),
        subtitle=escape(describe_conditions(records)),
        style=style,
        sections="\n".join(section.html(f"s{index}") for index, section in enumerate(sections, start=1)),
        version=escape(__version__),
        count="one record" if len(records) == 1 else f"{len(records)} records",
        script=script,
    )


def _make_title(records: list[Record]) -> str:
    tasks = list(dict.fromkeys(str(record.plan.get("task", "")) for record in records))
    task = f" on {tasks[0]}" if len(tasks) == 1 and tasks[0] else ""
    return f"{records[0].name}{task}" if len(records) == 1 else f"{len(records)} runs{task}"


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _read(name: str) -> str:
    return (files("tutti.lab.report") / name).read_text("utf-8")
