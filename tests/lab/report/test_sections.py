"""The tables hold what the records hold, with units and sources, and something is said where there is nothing."""

from __future__ import annotations

import dataclasses

from sample_records import make_empty, make_race, make_record

from tutti.lab.figures import read_figures
from tutti.lab.report.parts import Cell, Paragraph, Section, Table
from tutti.lab.report.sections import make_findings, make_learning, make_results, make_steps, make_traffic
from tutti.lab.table import finding


def table_of(section: Section) -> Table:
    (table,) = (part for part in section.parts if isinstance(part, Table))
    return table


def texts(row: object) -> list[str]:
    assert isinstance(row, list)
    return [cell.text if isinstance(cell, Cell) else cell for cell in row]


def paragraphs(section: Section) -> str:
    return " ".join(part.text for part in section.parts if isinstance(part, Paragraph))


def test_the_finding_comes_first() -> None:
    lead = make_findings(make_race()).parts[0]
    assert lead == Paragraph(finding(make_race()), "lead")


# --- results ---------------------------------------------------------------------------------------------------------


def test_results_have_a_row_per_record() -> None:
    table = table_of(make_results(make_race()))
    assert [header.replace("\n", " ") for header in table.header] == [
        *("run", "workers", "accuracy %", "loss", "step ms", "speed × single", "samples/s mean ± std"),
        *("sent per step", "compute ms", "hidden ms", "exposed ms"),
    ]
    rows = {texts(row)[0]: texts(row)[1:] for row in table.rows}
    assert list(rows) == [record.name for record in make_race()]
    assert rows["ddp"] == ["4", "97.0", "0.1000", "14.8", "0.58", "4329 ± 85", "362 KiB", "10.2", "3.1", "4.6"]
    assert rows["torch-ddp"][6] == "≈ 362 KiB"


def test_results_sort_by_what_was_measured() -> None:
    records = make_race()
    figures = read_figures(records, 100)
    for row, each in zip(table_of(make_results(records)).rows, figures, strict=True):
        values = [cell.value for cell in row if isinstance(cell, Cell)][1:]
        assert values[0] == each.workers
        assert values[1] == 100 * each.accuracy
        assert values[5:7] == [each.rate, each.nbytes]


def test_a_spec_stands_under_a_name_that_does_not_say_it() -> None:
    record = make_record("ddp")
    named = dataclasses.replace(record, spec="gradient-average(all-reduce(ring))")
    for each, note in ((record, ""), (named, "gradient-average(all-reduce(ring))")):
        (row,) = table_of(make_results([each])).rows
        assert isinstance(row[0], Cell)
        assert row[0].note == note


def test_what_is_missing_is_a_dash() -> None:
    (row,) = table_of(make_results([make_empty()])).rows
    assert texts(row) == ["empty", "4", *["–"] * 9]


def test_sources_are_explained_where_they_occur() -> None:
    assert "metered on our wire; ≈ by formula" in paragraphs(make_results(make_race()))
    assert "≈" not in paragraphs(make_results([make_record()]))
    counted = make_results([make_record(source="interface")])
    assert "^ counted by the network interface" in paragraphs(counted)
    assert texts(table_of(counted).rows[0])[7] == "^ 362 KiB"


def test_slow_steps_are_in_seconds() -> None:
    assert table_of(make_results([make_record(step=12.0, exposed=3.0)])).header[4] == "step\ns"


def test_a_long_baseline_has_a_short_name() -> None:
    long = "gradient-average(all-reduce(ring))"
    assert table_of(make_results([make_record(long)])).header[5] == "speed\n× the first"
    assert table_of(make_results([make_record(long, workers=1)])).header[5] == "speed\n× one worker"


# --- figures ---------------------------------------------------------------------------------------------------------


def test_something_is_said_where_there_is_no_figure() -> None:
    assert paragraphs(make_learning([make_empty()])) == "No accuracy was measured."
    assert paragraphs(make_steps([make_empty()])) == "No step was measured."
    assert len(make_learning(make_race()).parts) == 2
    assert not paragraphs(make_steps(make_race()))


# --- traffic ---------------------------------------------------------------------------------------------------------


def test_traffic_is_summed_over_workers_and_peers() -> None:
    record = make_record(workers=2, nbytes=1024.0, steps=10)
    table = table_of(make_traffic([record]))
    assert table.header[:4] == ["run", "gradients", "control", "all kinds"]
    assert texts(table.rows[0]) == ["ddp", "20.0 KiB", "78 B", "20.1 KiB", "50 %", "320", "400 ms"]


def test_the_busiest_worker_is_told() -> None:
    record = make_record(workers=2, nbytes=1000.0, steps=1)
    record.measurements[1]["traffic"] = [{"kind": "gradients", "peer": 0, "sent": 3117.0, "received": 0.0}]
    assert texts(table_of(make_traffic([record])).rows[0])[4] == "75 %"


def test_traffic_by_formula_is_marked() -> None:
    section = make_traffic([make_record(source="formula"), make_record("ring")])
    by_formula, metered = (texts(row) for row in table_of(section).rows)
    assert by_formula[1].startswith("≈ ")
    assert not metered[1].startswith("≈")
    assert "≈ by formula" in paragraphs(section)
    assert "≈" not in paragraphs(make_traffic([make_record()]))


def test_kinds_that_nobody_knows_yet_come_first() -> None:
    record = make_record()
    record.measurements[0]["traffic"].append({"kind": "gossip", "peer": 1, "sent": 5.0})
    assert table_of(make_traffic([record])).header[1:3] == ["gossip", "gradients"]


def test_a_run_without_traffic() -> None:
    single = make_record("single", workers=1)
    assert paragraphs(make_traffic([single])) == "No traffic was recorded."
    rows = [texts(row) for row in table_of(make_traffic([single, make_record(), make_empty()])).rows]
    assert rows[0][1:] == rows[2][1:] == ["–"] * 6
