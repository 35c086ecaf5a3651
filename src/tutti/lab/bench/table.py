"""The rows of a benchmark as tables, one per operation, number of workers and dtype, and in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tutti.lab.bench.rows import FOR_P99, Row, Title, describe_title, find_fastest, find_native, group_rows
from tutti.lab.labels import join
from tutti.lab.units import NOTHING, format_bytes, format_number, format_percent, format_seconds

_FAST, _WRONG = "bold green", "bold red"


_WIDE = 110  # columns that the whole table needs


@dataclass(frozen=True)
class _Column:
    header: str
    cell: Callable[[Row, Row | None], str]  # of a row, beside the backend's own of the same size
    in_short: bool = True  # stays where there is little room


_PREDICTED = _Column("α–β\n", lambda row, _: _format(row.predicted))
_COLUMNS = (
    _Column("median\n", lambda row, _: format_seconds(row.seconds)),
    _Column("minimum\n", lambda row, _: format_seconds(row.min), in_short=False),
    _Column("p99\n", lambda row, _: _format(row.p99), in_short=False),
    _PREDICTED,
    _Column("algbw\nGB/s", lambda row, _: format_number(row.algbw / 1e9), in_short=False),
    _Column("busbw\nGB/s", lambda row, _: format_number(row.busbw / 1e9)),
    _Column("speed\n× native", lambda row, native: f"{native.seconds / row.seconds:.2f}" if native else NOTHING),
    _Column("floor\n/ median", lambda row, _: _format_share(row.floor / row.seconds)),
    _Column(
        "samples\n",
        lambda row, _: f"{row.samples}×{row.repeats}" if row.repeats > 1 else str(row.samples),
        in_short=False,
    ),
)


def make_tables(rows: list[Row], conditions: str, width: int) -> list[Table]:
    """In the order of the rows, with fewer columns where there is no room; under the last what holds for all."""
    columns = [column for column in _COLUMNS if column.in_short or width >= _WIDE]
    if all(row.predicted is None for row in rows):
        columns.remove(_PREDICTED)
    tables = [_make_table(title, sizes, columns) for title, sizes in group_rows(rows).items()]
    tables[-1].caption = Text("\n".join([conditions, *_notes(rows)]), justify="left")
    return tables


def _format(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_seconds(seconds)


def _format_share(share: float) -> str:
    return format_percent(share, 0) if share >= 0.01 or share == 0 else "<1 %"


def _make_table(title: Title, sizes: dict[int, list[Row]], columns: list[_Column]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.title, table.title_justify, table.title_style = describe_title(title), "left", "bold"
    table.add_column("bytes\n", justify="right", no_wrap=True)
    table.add_column("route\n", overflow="fold", min_width=12)
    for column in columns:
        table.add_column(column.header, justify="right", no_wrap=True)
    table.add_column("right\n", justify="center", no_wrap=True)
    for nbytes, rows in sizes.items():
        _add_size(table, columns, nbytes, rows)
    return table


def _add_size(table: Table, columns: list[_Column], nbytes: int, rows: list[Row]) -> None:
    """The routes in the order given, and under them what none of them can beat."""
    fastest, native = find_fastest(rows), find_native(rows)
    for index, row in enumerate(rows):
        best = row in fastest
        name = Text(f"{'*' if best else ' '} {row.route}", _FAST if best else "" if row.correct else _WRONG)
        right = Text("yes") if row.correct else Text("WRONG", _WRONG)
        cells = [column.cell(row, native) for column in columns]
        table.add_row(format_bytes(nbytes) if index == 0 else "", name, *cells, right)
    table.add_row("", "  floor", format_seconds(rows[0].floor), style="italic", end_section=True)


def _notes(rows: list[Row]) -> list[str]:
    repeated = max(row.repeats for row in rows)
    notes = [
        "* the fastest, and those equal to it within noise (the median of each lies between the other's quartiles)",
        "a sample is the slowest worker's time; the routes take turns, sample by sample, behind a barrier",
    ]
    if repeated > 1:
        notes.append(f"samples n×m: each of the n is the mean of m operations in a row, at most {repeated} here")
    if any(row.p99 is None for row in rows):
        notes.append(f"p99 only where there are {FOR_P99} samples")
    if any(row.predicted is not None for row in rows):
        notes.append(
            "α–β: the route's formula, rounds × α + bytes that pass one after another / β; α is the latency, β the "
            "rate that --network asks for"
        )
    notes.append("algbw = bytes / median, busbw = algbw × nccl-tests' factor; a GB is 10⁹ bytes")
    return notes


# --- the sentences ---------------------------------------------------------------------------------------------------


def find_wrong(rows: list[Row]) -> list[str]:
    """One sentence per route and operation that gave a wrong result."""
    wrong: dict[tuple[str, Title], list[str]] = {}
    for row in rows:
        if not row.correct:
            wrong.setdefault((row.route, (row.op, row.workers, row.dtype)), []).append(format_bytes(row.bytes))
    return [f"{route} gave a wrong result: {describe_title(title)}, {join(at)}" for (route, title), at in wrong.items()]


def make_findings(rows: list[Row]) -> list[str]:
    """Who is fastest at which sizes, one sentence per table."""
    return [f"{describe_title(title)}: {_describe_winners(sizes)}." for title, sizes in group_rows(rows).items()]


def _describe_winners(sizes: dict[int, list[Row]]) -> str:
    """As few routes as name a fastest one for every size, each with the sizes from where to where it is one."""
    spans: list[tuple[set[str], int, int]] = []
    for nbytes, rows in sizes.items():
        fastest = {row.route for row in find_fastest(rows)}
        if spans and spans[-1][0] & fastest:
            spans[-1] = (spans[-1][0] & fastest, spans[-1][1], nbytes)
        else:
            spans.append((fastest, nbytes, nbytes))
    texts = [f"{_choose(names, sizes, begin, end)} {_describe_span(begin, end)}" for names, begin, end in spans]
    return f"fastest, alone or within noise, is {', '.join(texts)}"


def _choose(names: set[str], sizes: dict[int, list[Row]], begin: int, end: int) -> str:
    """Of routes that are equal from here to there, the one whose medians are smallest."""
    logs = dict.fromkeys(sorted(names), 0.0)
    for row in (row for nbytes, rows in sizes.items() if begin <= nbytes <= end for row in rows if row.route in names):
        logs[row.route] += math.log(row.seconds)
    return min(logs, key=logs.__getitem__, default="none that is right")


def _describe_span(begin: int, end: int) -> str:
    return f"at {format_bytes(begin)}" if begin == end else f"from {format_bytes(begin)} to {format_bytes(end)}"
