"""Records for other programs: a CSV file with a row for each, and what TensorBoard reads."""

from __future__ import annotations

import csv
import io
import math
import re
import tempfile
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tutti.errors import NotWritten, UserError
from tutti.files import name_problem
from tutti.lab.figures import read_figures
from tutti.lab.record import Record

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_NAME_LENGTH = 60


def write_whole(text: str, path: Path) -> None:
    """Whole or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8", newline="")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise NotWritten(f"cannot write {path}: {name_problem(error)}") from None


# --- rows ------------------------------------------------------------------------------------------------------------


def flatten(record: Record) -> dict[str, Any]:
    """One row of plain values; None stands for a figure that there is not."""
    (figures,) = read_figures([record], _NAME_LENGTH)
    row = {
        "begun": record.begun,
        "name": record.name,
        "spec": record.spec,
        "task": record.plan.get("task"),
        "model": record.plan.get("model"),
        "workers": record.workers,
        "engine": record.launch.get("engine"),
        "network": _network(record),
        "partition": record.plan.get("partition"),
        "loss_rate": record.plan.get("loss"),
        "global_batch": record.plan.get("global_batch"),
        "lr": record.plan.get("lr"),
        "steps": record.steps if record.measurements else 0,
        "accuracy": figures.accuracy,
        "loss": figures.loss,
        "step_seconds": figures.step,
        "median_step_seconds": figures.median,
        "train_seconds": record.train_seconds if record.measurements else None,
        "samples_per_second_mean": figures.rate,
        "samples_per_second_std": figures.deviation,
        "bytes_per_step": figures.nbytes,
        "busiest_bytes_per_step": figures.busiest,
        "bytes_source": figures.source or None,
        "payload_bytes_per_step": fmean(record.payload_per_step) if record.measurements else None,
        "anatomy_compute": figures.compute,
        "anatomy_hidden": figures.hidden,
        "anatomy_exposed": figures.exposed,
        "wall_seconds": record.wall_seconds,
    }
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def _network(record: Record) -> str | None:
    network = record.launch.get("network") or None
    return str(network.get("asked")) if isinstance(network, dict) else network


def make_csv(rows: list[dict[str, Any]]) -> str:
    """With the names of the columns in the first line; what is missing is empty."""
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_csv(records: list[Record], to: str) -> None:
    """A row for every record, to a file or, where it is called -, to standard output."""
    text = make_csv([flatten(record) for record in records])
    if to == "-":
        print(text, end="")
    else:
        write_whole(text, Path(to))


# --- TensorBoard -----------------------------------------------------------------------------------------------------


def write_tensorboard(records: list[Record], folder: Path) -> None:
    """A run of its own for every record, all of them or none; runs that are there already are not touched."""
    make_writer = _find_writer()
    names = [_folder_name(index, record) for index, record in enumerate(records, start=1)]
    for name in names:
        if (folder / name).exists():
            raise UserError(f"--tensorboard {folder} has a run {name} already; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=folder) as draft:
            for record, name in zip(records, names, strict=True):
                with make_writer(str(Path(draft) / name)) as writer:
                    _write_scalars(record, writer)
            for name in names:
                (Path(draft) / name).replace(folder / name)
    except OSError as error:
        raise NotWritten(f"cannot write --tensorboard {folder}: {name_problem(error)}") from None


def _folder_name(index: int, record: Record) -> str:
    return f"{index:02d}-{re.sub(r'[^A-Za-z0-9.]+', '-', record.name).strip('-')[:_NAME_LENGTH]}"


def _find_writer() -> type[SummaryWriter]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        sentence = '--tensorboard needs the package tensorboard: pip install "tutti-train[tensorboard]"'
        raise UserError(sentence) from None
    return SummaryWriter


def _write_scalars(record: Record, writer: SummaryWriter) -> None:
    """Worker 0's own steps, at the time of training at which they were over on the clock of all workers."""
    if not record.measurements:
        return
    begun, first = datetime.fromisoformat(record.begun).timestamp(), record.measurements[0]
    names = {"losses": "train/loss", "seconds": "step/seconds", "hidden": "step/hidden", "exposed": "step/exposed"}
    ends = record.times.ends if record.times else accumulate(first["seconds"])
    for index, seconds in enumerate(ends):
        for key, name in names.items():
            writer.add_scalar(name, first[key][index], index + 1, begun + seconds)
    for entry in record.evaluations:
        for key in ("accuracy", "loss"):
            writer.add_scalar(f"test/{key}", entry[key], int(entry["step"]), begun + entry["seconds"])
