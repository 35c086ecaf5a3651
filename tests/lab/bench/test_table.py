"""Tables that name every figure, mark the fastest, show what is wrong, and say how it was measured."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from sample_rows import MIB, make_row

from tutti.lab.bench.rows import Row
from tutti.lab.bench.table import find_wrong, make_findings, make_tables

CONDITIONS = "loopback · 2 cores\nfloor: memory"


def read(rows: list[Row], width: int = 110) -> list[str]:
    console = Console(file=io.StringIO(), width=width, record=True)
    for table in make_tables(rows, CONDITIONS, width):
        console.print(table)
    return [line.rstrip() for line in console.export_text().splitlines()]


ROWS = [
    make_row("ring", 1e-3, p99=2e-3, samples=200, repeats=4),
    make_row("star", 4e-3),
    make_row("native", 2e-3),
]


def test_a_row_has_all_its_figures() -> None:
    lines = read(ROWS)
    assert lines[0] == "all-reduce · 4 workers · float32"
    ring = next(line for line in lines if "* ring" in line)
    expected = "1.00 MiB * ring 1.00 ms 900 µs 2.00 ms 1.05 1.57 2.00 10 % 200×4 yes"
    assert ring.split() == expected.split()
    star = next(line for line in lines if " star" in line)
    assert star.split() == ["star", "4.00", "ms", "3.60", "ms", "–", "0.262", "0.393", "0.50", "2", "%", "50", "yes"]
    assert next(line for line in lines if "floor   " in line).split() == ["floor", "100", "µs"]


def test_a_wrong_result_cannot_be_overlooked() -> None:
    rows = [make_row("ring", correct=False), make_row("star", 4e-3)]
    console = Console(file=io.StringIO(), width=110, record=True, force_terminal=True)
    console.print(make_tables(rows, CONDITIONS, 110)[0])
    styled = console.export_text(styles=True)
    assert "\x1b[1;31mWRONG\x1b[0m" in styled
    assert any("* star" in line for line in read(rows)), "what is wrong is never the fastest"


def test_wrong_results_in_a_sentence() -> None:
    rows = [make_row("ring", correct=False), make_row("ring", nbytes=4096, correct=False), make_row("star")]
    assert find_wrong(rows) == ["ring gave a wrong result: all-reduce · 4 workers · float32, 1.00 MiB and 4.00 KiB"]
    assert find_wrong([make_row()]) == []


def test_one_table_per_operation_workers_and_dtype() -> None:
    rows = [make_row(), make_row(workers=2), make_row(dtype="float64"), make_row(op="reduce", workers=1)]
    titles = [line for line in read(rows) if "worker" in line and "·" in line and "core" not in line]
    assert titles[0] == "all-reduce · 4 workers · float32"
    assert titles[1] == "all-reduce · 2 workers · float32"
    assert titles[3] == "reduce · 1 worker · float32"


def test_the_caption_says_how_it_was_measured() -> None:
    text = "\n".join(read(ROWS))
    assert CONDITIONS.splitlines()[1] in text
    assert "take turns" in text
    assert "mean of m operations in a row" in text
    assert "p99 only where there are 100 samples" in text
    plain = "\n".join(read([make_row(p99=1.0)]))
    assert "operations in a row" not in plain
    assert "p99 only" not in plain


def test_predictions_have_a_column_where_there_are_any() -> None:
    text = " ".join(" ".join(read([make_row(predicted=5e-4)])).split())
    assert " α–β algbw" in text
    assert "α–β: the route's formula" in text
    assert "α is the latency, β the rate that --network asks for" in text
    assert "α–β" not in "\n".join(read(ROWS))


def test_without_the_backend_there_is_no_speed_beside_it() -> None:
    (line,) = [line for line in read([make_row("ring")]) if "* ring" in line]
    assert line.split()[-5:] == ["–", "10", "%", "50", "yes"]


@pytest.mark.parametrize("width", [80, 110, 140])
def test_no_figure_is_cut_off(width: int) -> None:
    rows = [make_row(name, 1.234e-3, predicted=1e-3) for name in ("ring", "double-binary-tree", "native")]
    lines = read(rows, width)
    assert "…" not in "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert sum("1.23 ms" in line for line in lines) == 3


def test_findings_name_as_few_routes_as_win_everywhere() -> None:
    rows = [
        make_row("star", 1.0e-4, 4096),
        make_row("ring", 1.01e-4, 4096),
        make_row("star", 3.0e-4, 65536),
        make_row("ring", 2.0e-4, 65536),
        make_row("star", 1.0e-2, MIB),
        make_row("ring", 2.0e-2, MIB),
    ]
    (sentence,) = make_findings(rows)
    title = "all-reduce · 4 workers · float32"
    fastest = "ring from 4.00 KiB to 64.0 KiB, star at 1.00 MiB"
    assert sentence == f"{title}: fastest, alone or within noise, is {fastest}."
    assert "none that is right" in make_findings([make_row(correct=False)])[0]


def test_of_equal_routes_the_one_with_the_smaller_medians_is_named() -> None:
    """Over all the sizes where it is one of the fastest, not at the largest alone."""
    rows = [
        make_row("auto", 1.015e-4, 4096),
        make_row("star", 1.0e-4, 4096),
        make_row("auto", 2.0e-4, 65536),
        make_row("star", 2.01e-4, 65536),
    ]
    assert "is star from 4.00 KiB to 64.0 KiB." in make_findings(rows)[0]
