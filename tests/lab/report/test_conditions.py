"""What all runs have in common stands once, what differs stands with the runs that it holds for."""

from __future__ import annotations

import dataclasses
from typing import Any

from sample_records import make_record

from tutti.lab.record import Record
from tutti.lab.report.conditions import make_conditions
from tutti.lab.report.parts import Cell, Code, Heading, Paragraph, Section, Table, Terms


def terms_under(section: Section, title: str) -> dict[str, list[str]]:
    index = section.parts.index(Heading(title))
    terms = section.parts[index + 1]
    assert isinstance(terms, Terms)
    return {term: list(lines) for term, lines in terms.entries}


def changed(record: Record, **fields: Any) -> Record:
    return dataclasses.replace(record, **fields)


def test_what_is_common_stands_once() -> None:
    section = make_conditions([make_record(lr=0.1), make_record("ring", lr=0.1)])
    assert terms_under(section, "Plan") == {
        "task": ["digits"],
        "global batch": ["64"],
        "epochs": ["3"],
        "lr": ["0.1"],
    }
    assert terms_under(section, "Workers") == {"workers": ["4"], "engine": ["processes"], "wire": ["tcp"]}
    assert terms_under(section, "Machine") == {"cores": ["2"], "processor": ["A Processor @ 2.80GHz"]}
    assert terms_under(section, "Versions") == {"torch": ["2.13.0+cpu"], "tutti": ["0.1.0"]}


def test_what_differs_stands_with_its_runs() -> None:
    records = [
        make_record("a", lr=0.1),
        make_record("b", lr=0.2),
        make_record("c", lr=0.1),
        make_record("d", workers=1),
    ]
    section = make_conditions(records)
    assert terms_under(section, "Plan")["lr"] == ["0.1 (a and c)", "0.2 (b)", "none (d)"]
    assert terms_under(section, "Workers")["workers"] == ["4 (a, b and c)", "1 (d)"]


def test_many_runs_are_counted() -> None:
    records = [make_record(str(i), seed=i // 8) for i in range(9)]
    assert terms_under(make_conditions(records), "Plan")["seed"] == ["0 (8 runs)", "1 (8)"]


def test_commands_can_be_copied() -> None:
    one = make_conditions([make_record(), make_record("ring")])
    assert [part for part in one.parts if isinstance(part, Code)] == [Code("tutti compare")]
    two = make_conditions([make_record(), changed(make_record("ring"), command="tutti run ring")])
    shown = [part for part in two.parts if isinstance(part, Code | Paragraph)]
    assert shown == [
        Paragraph("ddp:", "note"),
        Code("tutti compare"),
        Paragraph("ring:", "note"),
        Code("tutti run ring"),
    ]


def test_dates() -> None:
    records = [make_record(), changed(make_record("ring"), begun="2026-01-30T09:05:59+00:00")]
    dates = terms_under(make_conditions(records), "Date")
    assert dates["begun"] == ["2026-01-30 09:05 to 2026-01-31 12:00 UTC"]
    assert dates["took"] == ["24.6 s, with starting the workers and evaluating"]
    assert terms_under(make_conditions(records[:1]), "Date")["begun"] == ["2026-01-31 12:00 UTC"]


# --- the network -----------------------------------------------------------------------------------------------------


def test_nothing_is_said_of_a_network_that_was_not_recorded() -> None:
    assert Heading("Network") not in make_conditions([make_record()]).parts


def test_a_network_that_was_asked_for() -> None:
    records = [make_record(network={"asked": "loopback"}), make_record("ring")]
    assert terms_under(make_conditions(records[:1]), "Network") == {"asked": ["loopback"]}
    assert terms_under(make_conditions(records), "Network") == {"asked": ["loopback (ddp)", "none (ring)"]}


def test_hosts_are_described_with_their_units() -> None:
    measured = [{"host": 0, "asked": 1e8, "out": 9.91e7, "in": 9.9e7, "latency": 0.0101, "cpu_asked": 0.5, "cpu": 0.49}]
    network = {"asked": "hosts(100Mbit, cpu=0.5)", "measured": measured, "system_congestion_control": "cubic"}
    section = make_conditions([make_record(network=network)])
    assert terms_under(section, "Network")["system congestion control"] == ["cubic"]
    (table,) = (part for part in section.parts if isinstance(part, Table))
    assert table.header[:4] == ["run", "host", "asked", "out"]
    assert table.rows[0][:4] == ("ddp", "0", "100", "99.1")
    assert "Mbit/s" in table.caption


def test_anything_else_that_was_measured_is_shown_as_it_is() -> None:
    network = {"asked": "wifi", "measured": [{"bad_packets": 3, "rate": 1234.5, "band": "5 GHz"}, {"band": None}]}
    section = make_conditions([make_record(network=network)])
    (table,) = (part for part in section.parts if isinstance(part, Table))
    assert table.header == ["run", "bad packets", "rate", "band"]
    shown = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in table.rows]
    assert shown == [["ddp", "3", "1234", "5 GHz"], ["ddp", "", "", ""]]
