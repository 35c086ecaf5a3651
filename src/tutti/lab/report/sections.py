"""The records as sections of a page: findings, results, learning, steps, traffic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tutti.lab.figures import Figures, find_baseline, name_baseline, read_figures, say_own_clocks
from tutti.lab.labels import make_labels
from tutti.lab.record import Record
from tutti.lab.report.charts import make_accuracy_chart, make_loss_chart, make_step_chart
from tutti.lab.report.facts import make_facts
from tutti.lab.report.parts import Bullets, Cell, Paragraph, Part, Section, Table
from tutti.lab.table import TIMES, finding
from tutti.lab.units import NOTHING, common_unit, format_bytes, format_number, format_percent, format_seconds

_LABEL_LENGTH = 120
_BY_FORMULA = "≈ by formula, as a backend's own operations do not pass our wire"
_SOURCES = {  # what stands before a size, and what it means
    "metered": ("", "payload metered on our wire"),
    "formula": ("≈ ", _BY_FORMULA),
    "interface": ("^ ", "^ counted by the network interface, with headers and acknowledgements"),
}


def make_findings(records: list[Record]) -> Section:
    return Section("Findings", [Paragraph(finding(records), "lead"), Bullets(make_facts(records))])


# --- results ---------------------------------------------------------------------------------------------------------


def make_results(records: list[Record]) -> Section:
    figures = read_figures(records, _LABEL_LENGTH)
    scale, unit = common_unit([each.step for each in figures])
    decimals = 1 if any(each.step >= 10 * scale for each in figures) else 2
    base = find_baseline(figures)
    columns: list[tuple[str, Callable[[Figures], tuple[float, str]]]] = [
        ("workers", lambda f: (f.workers, str(f.workers))),
        ("accuracy\n%", lambda f: _fixed(100 * f.accuracy, 1)),
        ("loss", lambda f: _fixed(f.loss, 4) if f.loss < 10 else (f.loss, format_number(f.loss))),
        (f"step\n{unit}", lambda f: _fixed(f.step / scale, decimals)),
        (f"speed\n× {name_baseline(base)}", lambda f: _fixed(f.speed(base), 2)),
        ("samples/s\nmean ± std", lambda f: (f.rate, f"{_fixed(f.rate, 0)[1]} ± {_fixed(f.deviation, 0)[1]}")),
        ("sent\nper step", lambda f: _size_sent(f, f.nbytes)),
        *([("busiest\nworker", lambda f: _size_sent(f, f.busiest))] if any(f.is_uneven for f in figures) else []),
        (f"compute\n{unit}", lambda f: _fixed(f.compute / scale, decimals)),
        (f"hidden\n{unit}", lambda f: _fixed(f.hidden / scale, decimals)),
        (f"exposed\n{unit}", lambda f: _fixed(f.exposed / scale, decimals)),
        (f"median step\n{unit}", lambda f: _fixed(f.median / scale, decimals)),
    ]
    rows = [
        [_name(record, each.label), *(_cell(read(each)) for _, read in columns)]
        for record, each in zip(records, figures, strict=True)
    ]
    caption = "One run per row; choose a column to sort by it"
    table = Table(["run", *(header for header, _ in columns)], rows, caption)
    return Section("Results", [table, Paragraph(_explain_sources(figures), "note")])


def _size_sent(each: Figures, nbytes: float) -> tuple[float, str]:
    return nbytes, _SOURCES.get(each.source, ("",))[0] + format_bytes(nbytes)


def _name(record: Record, label: str) -> Cell:
    """With its spec under it where the name does not say it."""
    return Cell(label, note="" if record.spec == record.name else record.spec)


def _cell(figure: tuple[float, str]) -> Cell:
    value, text = figure
    return Cell(text if math.isfinite(value) else NOTHING, value)


def _fixed(value: float, decimals: int) -> tuple[float, str]:
    return value, f"{value:.{decimals}f}" if math.isfinite(value) else NOTHING


def _explain_sources(figures: list[Figures]) -> str:
    means = [means for source, (_, means) in _SOURCES.items() if any(each.source == source for each in figures)]
    older = f"; {said}" if (said := say_own_clocks(figures)) else ""
    sent = f" Bytes sent are one worker's, the mean of all: {'; '.join(means)}." if means else ""
    return (
        f"Step: {TIMES}; the median step leaves them out{older}. Compute and exposed add up to the step, as the mean over "
        f"all workers; hidden communication ran beside computing, exposed was waited for.{sent}"
    )


# --- learning and steps ----------------------------------------------------------------------------------------------


def make_learning(records: list[Record]) -> Section:
    accuracy, loss = make_accuracy_chart(records), make_loss_chart(records)
    parts: list[Part] = [part for part in (accuracy, loss) if part is not None]
    if accuracy is None:
        parts.insert(0, Paragraph("No accuracy was measured."))
    return Section("Learning", parts)


def make_steps(records: list[Record]) -> Section:
    return Section("Steps", [make_step_chart(records) or Paragraph("No step was measured.")])


# --- traffic ---------------------------------------------------------------------------------------------------------


def make_traffic(records: list[Record]) -> Section:
    """What all workers sent in the whole run, by kind; a kind that nobody sent has no column."""
    kinds = sorted({str(row["kind"]) for record in records for row in _traffic(record)}, key=_order)
    if not kinds:
        return Section("Traffic", [Paragraph("No traffic was recorded.")])
    labels = make_labels(records, _LABEL_LENGTH)
    rows = [[Cell(label), *_traffic_cells(record, kinds)] for record, label in zip(records, labels, strict=True)]
    header = ["run", *kinds, "all kinds", "busiest worker\nof all that is sent", "messages", "in calls\nper worker"]
    notes = (
        "Payload sent by all workers together, from joining to leaving: the starting weights, evaluation and control "
        "too, which what is sent per step leaves out, and no headers. "
        "In calls are the seconds that a worker spent sending and receiving, waiting included."
    )
    by_formula = any("formula" in row for record in records for row in _traffic(record))
    table = Table(header, rows, "Payload sent in the whole run, by kind")
    return Section("Traffic", [table, Paragraph(f"{notes} {_BY_FORMULA}." if by_formula else notes, "note")])


def _order(kind: str) -> tuple[int, str]:
    known = ("gradients", "weights", "buffers", "metrics", "control")
    return (known.index(kind) if kind in known else -1, kind)


def _traffic(record: Record) -> list[dict[str, Any]]:
    return [row for measurement in record.measurements for row in measurement.get("traffic", [])]


def _traffic_cells(record: Record, kinds: list[str]) -> list[Cell]:
    rows = _traffic(record)
    if not rows:
        return [Cell(NOTHING, math.nan)] * (len(kinds) + 4)
    sizes = [_size([row for row in rows if row["kind"] == kind]) for kind in kinds]
    messages = sum(int(row.get("messages", 0)) for row in rows)
    seconds = sum(float(row.get("seconds", 0)) for row in rows) / len(record.measurements)
    return [
        *sizes,
        _size(rows),
        _share_of_busiest(record),
        Cell(f"{messages:,}", messages),
        Cell(format_seconds(seconds), seconds),
    ]


def _size(rows: list[dict[str, Any]]) -> Cell:
    total = _sent(rows)
    mark = "≈ " if any(row.get("formula") for row in rows) else ""
    return Cell(mark + format_bytes(total), total)


def _share_of_busiest(record: Record) -> Cell:
    each = [_sent(measurement.get("traffic", [])) for measurement in record.measurements]
    share = max(each) / sum(each) if sum(each) else math.nan
    return Cell(format_percent(share, 0), share)


def _sent(rows: list[dict[str, Any]]) -> float:
    return sum(float(row.get("sent", 0)) + float(row.get("formula", 0)) for row in rows)
