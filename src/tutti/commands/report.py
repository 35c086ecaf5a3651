"""`tutti report`: records as one HTML page, and for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.commands.base import add_command, check_file, complain

if TYPE_CHECKING:
    from tutti.commands.base import Commands

_EXAMPLES = """
  tutti report runs/first --open                   a page of everything in a folder, opened in the browser
  tutti report a/02-ring.json b/02-ring.json       of some records, to a/report.html
  tutti report runs/first --csv - --out /tmp/page.html
"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "report", _report, "make a page of what was measured", _EXAMPLES)
    parser.add_argument("records", metavar="RECORDS", nargs="+", type=Path, help="records of runs, or folders of them")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: report.html beside the first; runs.html beside a study's)",
    )
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    parser.add_argument("--csv", metavar="FILE", help="a row of figures per record as well; - is standard output")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="a run for TensorBoard per record as well")


def _report(args: argparse.Namespace) -> int:
    from tutti.lab.export import write_csv, write_tensorboard
    from tutti.lab.report.find import load_records, passed_over

    records, problems = load_records(args.records)
    for problem in problems:
        complain(f"left out: {problem}")
    left_out = [str(path) for path in passed_over(args.records)]
    if left_out:
        complain(f"left out, as they are no records of runs: {', '.join(left_out)}")
    first: Path = args.records[0]
    told = any(record.command.startswith(("tutti study ", "tutti reproduce ")) for record in records)
    name = "runs.html" if told else "report.html"  # a study has told its story there
    out: Path = args.out or (first if first.is_dir() else first.parent) / name
    check_file(str(out), "--out")
    check_file(args.csv, "--csv")
    if args.tensorboard is not None:
        write_tensorboard(records, args.tensorboard)
    if args.csv is not None:
        write_csv(records, args.csv)

    from tutti.lab.report.page import write_report

    write_report(records, out)
    print(f"report: {out}", file=sys.stderr if args.csv == "-" else sys.stdout)
    if args.open:
        _open(out)
    return 0


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        print(f"tutti: there is no browser here; open {page} in yours", file=sys.stderr)
