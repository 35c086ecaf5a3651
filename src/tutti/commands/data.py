"""`tutti data`: fetch the data sets that tasks train on, and list what is here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tutti.commands.base import PIPED_WIDTH, add_command, check_file, write_json
from tutti.errors import UserError, suggest

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from tutti.commands.base import Commands
    from tutti.data.dataset import DataSet

_EXAMPLES = """
  tutti data list                         which data sets there are, and where they lie
  tutti data get mnist                    fetch one; an interrupted download is gone on with
  tutti run ddp --task mnist --epochs 1   train on it
"""
_GET_EXAMPLES = """
  tutti data get mnist
  tutti data get mnist fashion-mnist cifar10      about 300 MB
  tutti data get cifar10 --data /big/disk         then: tutti run ddp --task cifar10 --data /big/disk
"""
_LIST_EXAMPLES = """
  tutti data list
  tutti data list --data /big/disk
  tutti data list --json -                with the checksums of all files, for a program
"""


def add(commands: Commands) -> None:
    group = add_command(commands, "data", None, "fetch data sets, and list those that are here", _EXAMPLES)
    verbs = group.add_subparsers(title="commands", required=True, metavar="COMMAND")
    get = add_command(verbs, "get", _get, "fetch data sets, checked, into the cache or a folder", _GET_EXAMPLES)
    get.add_argument("names", metavar="NAME", nargs="+", help="see tutti data list")
    get.add_argument("--quiet", action="store_true", help="no progress")
    show = add_command(verbs, "list", _list, "list the data sets, and where they are", _LIST_EXAMPLES)
    show.add_argument("--json", metavar="FILE", help="write the list as JSON; - is standard output")
    for command in (get, show):
        command.add_argument(
            "--data", type=Path, metavar="DIR", help="where data sets are (default: $TUTTI_DATA or the cache)"
        )


def _get(args: argparse.Namespace) -> int:
    from tutti.data.fetch import get

    wanted = _choose(args.names)
    for dataset in wanted:
        with _Display(dataset.name, args.quiet) as display:
            fetched = get(dataset, args.data, display.show)
        if fetched.source is None:
            print(f"{dataset.name} is in {fetched.folder} already, whole and checked")
        else:
            print(f"{dataset.name} is in {fetched.folder} now, checked; it came from {fetched.source}")
    return 0


def _list(args: argparse.Namespace) -> int:
    check_file(args.json, "--json")
    rows = [_describe(dataset, args.data) for dataset in _data_sets().values()]
    if args.json is not None:
        write_json(rows, args.json)
    if args.json != "-":
        _print_table(rows)
    return 0


# --- which data sets there are ---------------------------------------------------------------------------------------


def _data_sets() -> dict[str, DataSet]:
    """Those of the tasks that read files."""
    from tutti.spec import member, names
    from tutti.tasks.base import Task

    found = {name: member(Task, name).data_set for name in names("tasks")}
    return {name: dataset for name, dataset in found.items() if dataset is not None}


def _choose(names: list[str]) -> list[DataSet]:
    known = _data_sets()
    for name in names:
        if name not in known:
            raise UserError(f"there is no data set '{name}' to fetch{suggest(name.lower(), list(known))}")
    return [known[name] for name in dict.fromkeys(names)]


def _describe(dataset: DataSet, folder: Path | None) -> dict[str, Any]:
    from dataclasses import asdict

    from tutti.data.store import command, files_in, find_whole, list_faults, places

    whole = find_whole(dataset, folder)
    begun = next((place for place in places(dataset, folder) if files_in(dataset, place)), None)
    return {
        "name": dataset.name,
        "train": dataset.train,
        "test": dataset.test,
        "classes": dataset.classes,
        "bytes": dataset.size,
        "complete": whole is not None,
        "folder": str(whole or begun) if whole or begun else None,
        "faults": list_faults(dataset, begun) if begun and not whole else [],
        "get": command(dataset, folder),
        "files": [asdict(file) for file in dataset.files],
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tutti.lab.units import format_bytes

    table = Table.grid(padding=(0, 2, 0, 0))
    for title, justify in (("data set", "left"), ("train", "right"), ("test", "right"), ("classes", "right")):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_row(*(Text(str(column.header), "dim") for column in table.columns))
    for row in rows:
        figures = (f"{row[key]:,}" for key in ("train", "test", "classes"))
        table.add_row(Text(row["name"], "bold"), *figures, format_bytes(row["bytes"]), Text(*_where(row)))
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table, highlight=False)


def _where(row: dict[str, Any]) -> tuple[str, str]:
    """Where the data set is, and the colour of that."""
    if row["complete"]:
        return f"{row['folder']} (complete)", "green"
    if row["folder"]:
        return f"{row['folder']} (not complete: {', '.join(row['faults'])}); {row['get']}", "yellow"
    return f"not here: {row['get']}", ""


# --- progress --------------------------------------------------------------------------------------------------------


class _Display:
    """How far a fetch is, on standard error: a bar, or a line per step where that is no terminal."""

    def __init__(self, name: str, quiet: bool) -> None:
        self._name, self._quiet, self._text = name, quiet, ""
        self._bars: Bars | None = None
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._quiet:
            self._bars = _make_bars()
        if self._bars is not None:
            self._bar = self._bars.add_task(self._name, total=None)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, done: int, total: int | None, text: str) -> None:
        """What the library reports."""
        begins, self._text = text != self._text, text
        if self._quiet:
            return
        if self._bars is None or self._bar is None:
            if begins:
                print(f"{self._name}: {text}", file=sys.stderr, flush=True)
            return
        if begins:
            self._bars.reset(self._bar, total=total, completed=done, description=f"{self._name}  {text}")
        else:
            self._bars.update(self._bar, total=total, completed=done)


def _make_bars() -> Bars | None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.table import Column

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    columns = (
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=16, complete_style="cyan", finished_style="green"),
        DownloadColumn(table_column=Column(no_wrap=True, justify="right")),
        TransferSpeedColumn(table_column=Column(no_wrap=True, justify="right")),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
    )
    return Progress(*columns, console=console, transient=True, expand=True, redirect_stdout=False)
