"""`tutti runs`: the records there are, newest first."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.commands.base import add_command, check_file, complain, write_json, write_text
from tutti.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tutti.commands.base import Commands
    from tutti.lab.report.find import Found

_EXAMPLES = """
  tutti runs                    everything under runs/, newest first
  tutti runs results --csv -    everything under another folder, for a program
"""
_COLUMNS = ("begun, UTC", "run", "task", "model", "workers", "network", "accuracy", "step", "sent/step", "file")
_NUMBERS = ("workers", "accuracy", "step", "sent/step")
_SPARED = ("model", "network", "task", "sent/step", "workers")  # one after another, until the rest fits a terminal
_NAME_LENGTH, _FOLDED = 48, 24
_PIPED_WIDTH = 1000  # where nobody looks, lines are whole


def add(commands: Commands) -> None:
    parser = add_command(commands, "runs", _runs, "list the runs that left a record", _EXAMPLES)
    text = "where they are, in any folder below (default: runs)"
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=Path("runs"), help=text)
    parser.add_argument("--json", metavar="FILE", help="write the list as JSON; - is standard output")
    parser.add_argument("--csv", metavar="FILE", help="write the list as CSV; - is standard output")


def _runs(args: argparse.Namespace) -> int:
    from rich.console import Console

    from tutti.lab.export import make_csv, write_whole

    check_file(args.json, "--json")
    check_file(args.csv, "--csv")
    rows = [_describe(each) for each in _find(args.folder)]
    if args.json is not None:
        write_json(rows, args.json)
    if args.csv == "-":
        write_text(make_csv(rows), "-")
    elif args.csv is not None:
        write_whole(make_csv(rows), Path(args.csv))
    if "-" not in (args.json, args.csv):
        console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
        console.print(_fit(rows, args.folder, console))
    return 0


def _find(folder: Path) -> list[Found]:
    """The newest first, and after them those of other versions; damaged ones are reported and left out."""
    from tutti.lab.report.find import find_records

    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; `tutti run` and `tutti compare` leave their records in runs")
    found = find_records(folder, "**/*.json")
    for each in found:
        if each.damaged:
            complain(f"left out: {each.problem}")
    found = [each for each in found if not each.damaged]
    if not found:
        raise UserError(f"there is no record of a run in {folder} or below; `tutti compare --out {folder}` leaves some")
    return sorted(found, key=lambda each: each.record.begun if each.record else "", reverse=True)


def _describe(found: Found) -> dict[str, Any]:
    from tutti.lab.export import flatten

    if found.record is None:
        return {"file": str(found.path), "problem": found.problem}
    return {"file": str(found.path), **flatten(found.record)}


def _fit(rows: list[dict[str, Any]], folder: Path, console: Console) -> Table:
    """The table with all columns that there is room for; the others are in --json and --csv."""
    cells = [_write(row, folder) for row in rows]
    for count in range(len(_SPARED) + 1):
        columns = [column for column in _COLUMNS if column not in _SPARED[:count]]
        if sum(_width(column, cells) + 2 for column in columns) - 2 <= console.width:
            break
    return _make_table(cells, columns)


def _width(column: str, cells: list[dict[str, str]]) -> int:
    """That a column takes; long names of runs go on below."""
    width = max(len(text) for text in (column, *(each.get(column, "") for each in cells)))
    return min(width, _FOLDED) if column == "run" else width


def _make_table(cells: list[dict[str, str]], columns: list[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        folds = column in ("run", "file")
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=not folds, overflow="fold")
    for each in cells:
        table.add_row(*(Text(each.get(column, "")) for column in columns))
    return table


def _write(row: dict[str, Any], folder: Path) -> dict[str, str]:
    """A text per column."""
    from tutti.lab.labels import shorten
    from tutti.lab.units import NOTHING, format_bytes, format_percent, format_seconds

    file = str(Path(row["file"]).relative_to(folder))
    if "problem" in row:
        return {"begun, UTC": NOTHING, "run": "of another version", "file": file}
    accuracy, step, sent = (
        math.nan if row[key] is None else row[key] for key in ("accuracy", "step_seconds", "bytes_per_step")
    )
    return {
        "begun, UTC": row["begun"][:16].replace("T", " "),
        "run": shorten(row["name"], _NAME_LENGTH),
        "task": row["task"] or NOTHING,
        "model": row["model"] or NOTHING,
        "workers": str(row["workers"]),
        "network": row["network"] or NOTHING,
        "accuracy": format_percent(accuracy),
        "step": format_seconds(step),
        "sent/step": format_bytes(sent),
        "file": file,
    }
