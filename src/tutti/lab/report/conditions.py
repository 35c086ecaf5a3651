"""Under which conditions the records were made, and how to make them again; what all have in common stands once."""

from __future__ import annotations

import json
from typing import Any

from tutti.lab.labels import join, make_labels
from tutti.lab.network import HEADER, describe_hosts
from tutti.lab.record import Record
from tutti.lab.report.parts import Cell, Code, Heading, Paragraph, Part, Section, Table, Terms
from tutti.lab.units import format_number, format_seconds

_LABEL_LENGTH = 60
_MANY = 6  # so many runs are named, more are only counted


def make_conditions(records: list[Record]) -> Section:
    return Section("Conditions", [*_make_commands(records), *_make_groups(records), *_make_network(records)])


def _make_commands(records: list[Record]) -> list[Part]:
    """Each as it was typed, with the runs that it made where there are several."""
    runs: dict[str, list[str]] = {}
    for record, label in zip(records, make_labels(records, _LABEL_LENGTH), strict=True):
        runs.setdefault(record.command, []).append(label)
    parts: list[Part] = [Heading("To repeat it")]
    for command, labels in runs.items():
        parts += [Code(command)] if len(runs) == 1 else [Paragraph(f"{_name(labels)}:", "note"), Code(command)]
    return parts


def _make_groups(records: list[Record]) -> list[Part]:
    groups = {
        "Plan": [record.plan for record in records],
        "Workers": [{"workers": record.workers, **_without_network(record)} for record in records],
        "Machine": [record.machine for record in records],
        "Versions": [record.versions for record in records],
    }
    parts: list[Part] = [Heading("Date"), Terms([("begun", [_say_dates(records)]), ("took", [_say_length(records)])])]
    for title, each in groups.items():
        parts += [Heading(title), _make_terms(records, each)]
    return parts


def _without_network(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.launch.items() if key != "network"}


def _say_dates(records: list[Record]) -> str:
    dates = sorted(record.begun[:16].replace("T", " ") for record in records)
    return f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))} UTC"


def _say_length(records: list[Record]) -> str:
    total = format_seconds(sum(record.wall_seconds for record in records))
    return f"{total}, with starting the workers and evaluating"


def _make_terms(records: list[Record], groups: list[dict[str, Any]]) -> Terms:
    """One entry per key that any of them has a value for."""
    keys = dict.fromkeys(key for group in groups for key in group)
    entries = [(key.replace("_", " "), _tell(records, [_write(group.get(key)) for group in groups])) for key in keys]
    return Terms([(key, lines) for key, lines in entries if lines])


def _tell(records: list[Record], texts: list[str]) -> list[str]:
    """The one text that holds for all, or each with the runs that it holds for; nothing where all are empty."""
    runs: dict[str, list[str]] = {}
    for text, label in zip(texts, make_labels(records, _LABEL_LENGTH), strict=True):
        runs.setdefault(text, []).append(label)
    if len(runs) == 1:
        return [text for text in runs if text]
    return [f"{text or 'none'} ({_name(labels)})" for text, labels in runs.items()]


def _name(labels: list[str]) -> str:
    return join(labels) if len(labels) <= _MANY else f"{len(labels)} runs"


def _write(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:g}" if value < 1000 else format_number(value)
    return value if isinstance(value, str) else json.dumps(value)


# --- the network -----------------------------------------------------------------------------------------------------


def _make_network(records: list[Record]) -> list[Part]:
    """What was asked of it and what was measured, whatever that is; nothing is said where nothing was recorded."""
    said = [_network(record) for record in records]
    if not any(said):
        return []
    words = [{key: value for key, value in each.items() if key != "measured"} for each in said]
    return [Heading("Network"), _make_terms(records, words), *_make_measured(records)]


def _network(record: Record) -> dict[str, Any]:
    network = record.launch.get("network") or {}
    return network if isinstance(network, dict) else {"asked": network}


def _make_measured(records: list[Record]) -> list[Part]:
    """Hosts as lab/network.py describes them; anything else by the names it is recorded under."""
    labels = make_labels(records, _LABEL_LENGTH)
    rows = [
        (label, row)
        for label, record in zip(labels, records, strict=True)
        for row in _network(record).get("measured") or []
    ]
    if not rows:
        return []
    if all({"host", "latency"} <= row.keys() for _, row in rows):
        hosts = [(label, *describe_hosts({"measured": [row]})[0]) for label, row in rows]
        return [Table(["run", *HEADER], hosts, "The network as it was measured, rates in Mbit/s")]
    keys = list(dict.fromkeys(key for _, row in rows for key in row))
    cells = [[Cell(label), *(_measured_cell(row.get(key)) for key in keys)] for label, row in rows]
    return [Table(["run", *(key.replace("_", " ") for key in keys)], cells, "The network as it was measured")]


def _measured_cell(value: Any) -> Cell:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and isinstance(value, float):
        return Cell(format_number(value), value)
    return Cell(_write(value), value if number else None)
