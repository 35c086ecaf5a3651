"""How far the workers were apart, and what the mean of their models is worth beside each of them."""

from __future__ import annotations

import math
import statistics

from tutti.lab.labels import make_labels
from tutti.lab.record import Record
from tutti.lab.report.charts import make_distance_chart
from tutti.lab.report.parts import Cell, Paragraph, Part, Section, Table
from tutti.lab.units import format_number

_LABEL_LENGTH = 120
_HEADER = ("run", "mean model\n%", "least of the own\n%", "median\n%", "most\n%", "distance\nat the end")
_NOTE = (
    "The accuracy of record is that of the mean of all workers' models: means of weights, and of running means and "
    "variances where there is batch normalisation. Own models are each worker's at the end, on the whole test set."
)


def make_consensus(records: list[Record]) -> Section | None:
    """None where workers were equal in every run."""
    labelled = list(zip(make_labels(records, _LABEL_LENGTH), records, strict=True))
    rows = [_row(label, record) for label, record in labelled if record.own_accuracies]
    chart = make_distance_chart(records)
    table = Table(_HEADER, rows, "Accuracy of the mean model and of the workers' own models")
    parts: list[Part] = [chart] if chart is not None else []
    parts += [table, Paragraph(_NOTE, "note")] if rows else []
    return Section("Consensus", parts) if parts else None


def _row(label: str, record: Record) -> list[Cell]:
    own = record.own_accuracies
    accuracies = (record.accuracy, min(own), statistics.median(own), max(own))
    distance = math.nan if record.distance is None else record.distance
    cells = [Cell(f"{100 * accuracy:.1f}", 100 * accuracy) for accuracy in accuracies]
    return [Cell(label), *cells, Cell(format_number(distance), distance)]
