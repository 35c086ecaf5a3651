"""`tutti explain`: what every route takes for an operation in the α–β model, and where each wins; nothing is run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.commands.base import PIPED_WIDTH, add_command, check_file, positive, write_json
from tutti.errors import UserError

if TYPE_CHECKING:
    from tutti.commands.base import Commands
    from tutti.lab.explain import Explanation

_MOST_WORKERS = 256  # beyond, the routes' formulas take minutes
_EXAMPLES = """
  tutti explain all-reduce                                            four workers, 25 MiB, links of 1 Gbit/s
  tutti explain all-reduce --workers 4 --bytes 37MB --bandwidth 1Gbit --latency 0.1ms
  tutti explain all-reduce --workers 64 --bytes 4KiB --latency 5us    where latency is what matters
  tutti explain broadcast --route tree ring star                      three routes only
  tutti explain all-reduce --plot explain.png --json -                time against size; figures for a program
"""


def add(commands: Commands) -> None:
    text = "say what every route takes by its formula, and where each wins"
    parser = add_command(commands, "explain", _explain, text, _EXAMPLES)
    parser.add_argument(
        "operation", metavar="OP", help="all-reduce, reduce, broadcast, reduce-scatter, all-gather, ..."
    )
    parser.add_argument("--workers", type=positive, default=4, help="how many (default: 4)")
    parser.add_argument("--bytes", default="25MiB", metavar="SIZE", help="of the whole buffer (default: 25MiB)")
    parser.add_argument("--bandwidth", default="1Gbit", metavar="RATE", help="of every link (default: 1Gbit)")
    parser.add_argument("--latency", default="0.1ms", metavar="TIME", help="of every link, one way (default: 0.1ms)")
    parser.add_argument("--route", nargs="+", default=["all"], metavar="NAME", help="routes or specs (default: all)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time against size: .png, .svg or .pdf")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is standard output")


def _explain(args: argparse.Namespace) -> int:
    from tutti.lab.explain import make_json

    _check_files(args)
    explanation = _read(args)
    if args.plot is not None:
        from tutti.lab.curves import save
        from tutti.lab.explain_screen import make_picture

        save(make_picture(explanation), args.plot)
    if args.json is not None:
        write_json(make_json(explanation), args.json)
    if args.json != "-":
        _show(explanation, args.plot)
    return 0


def _check_files(args: argparse.Namespace) -> None:
    check_file(args.json, "--json")
    if args.plot is not None:
        from tutti.lab.curves import check_format

        check_format(args.plot, "--plot")
        check_file(str(args.plot), "--plot")


def _read(args: argparse.Namespace) -> Explanation:
    from tutti.lab.explain import Links, explain
    from tutti.lab.routes import find_operation, find_routes
    from tutti.spec import Bytes, Rate, Seconds, parse_quantity

    operation = find_operation(args.operation)
    nbytes = parse_quantity(args.bytes, Bytes, "--bytes")
    bandwidth = parse_quantity(args.bandwidth, Rate, "--bandwidth")
    latency = parse_quantity(args.latency, Seconds, "--latency")
    if args.workers > _MOST_WORKERS:
        raise UserError(f"--workers {args.workers} is more than can be worked out here: take up to {_MOST_WORKERS}")
    if args.workers < 2:
        raise UserError("one worker sends nothing, by any route: there is something to explain from --workers 2 on")
    if nbytes < 1:
        raise UserError("there is nothing to explain about no bytes; --bytes takes a size such as 25MiB")
    return explain(operation, find_routes(operation, args.route), nbytes, Links(args.workers, latency, bandwidth / 8))


def _show(explanation: Explanation, plot: Path | None) -> None:
    from rich.console import Console

    from tutti.lab.explain_screen import make_screen

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    console.print(make_screen(explanation))
    if plot is not None:
        console.print(f"picture: {plot}", soft_wrap=True)
