"""The section on workers that differ: there where they do, with what each of them and their mean are worth."""

from __future__ import annotations

import math

import pytest
from sample_records import make_empty, make_race, make_record

from tutti.lab.record import Record
from tutti.lab.report.chart import Chart
from tutti.lab.report.consensus import make_consensus
from tutti.lab.report.page import make_page
from tutti.lab.report.parts import Cell, Paragraph, Section, Table

APART = make_record("d-psgd", own=(0.8, 0.9, 0.7, 0.95), distances=(3.0, 2.0, 0.5))


def table_of(section: Section | None) -> Table:
    assert section is not None
    (table,) = (part for part in section.parts if isinstance(part, Table))
    return table


def texts(row: object) -> list[str]:
    assert isinstance(row, list)
    return [cell.text for cell in row if isinstance(cell, Cell)]


def test_a_row_for_every_run_whose_workers_differ() -> None:
    table = table_of(make_consensus([make_record(), APART, make_empty()]))
    assert [texts(row) for row in table.rows] == [["d-psgd", "97.0", "70.0", "85.0", "95.0", "0.500"]]
    assert [header.partition("\n")[0] for header in table.header] == [
        *("run", "mean model", "least of the own", "median", "most", "distance"),
    ]


def test_the_chart_stands_over_the_table() -> None:
    section = make_consensus([APART])
    assert section is not None
    assert [type(part) for part in section.parts] == [Chart, Table, Paragraph]


@pytest.mark.parametrize("records", [[], [make_empty()], make_race()])
def test_equal_workers_have_no_such_section(records: list[Record]) -> None:
    assert make_consensus(records) is None


def test_one_of_the_two_will_do() -> None:
    measured, finished = (
        make_consensus([make_record(distances=(1.0, 2.0, 3.0))]),
        make_consensus([make_record(own=(0.5,) * 4)]),
    )
    assert measured is not None
    assert [type(part) for part in measured.parts] == [Chart]
    assert texts(table_of(finished).rows[0])[-1] == "–"


def test_a_distance_that_is_no_number() -> None:
    lost = make_record(own=(0.1,) * 4, distances=(1.0, math.inf, math.nan))
    assert texts(table_of(make_consensus([lost])).rows[0])[-1] == "–"


def test_the_page_has_it_behind_learning() -> None:
    page = make_page([make_record(), APART])
    assert page.index(">Learning<") < page.index(">Consensus<") < page.index(">Steps<")
    assert ">Consensus<" not in make_page([make_record()])
