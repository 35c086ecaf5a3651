"""`tutti bench`: how long every route takes for every operation, from size to size, and what it makes of the links."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.commands.base import (
    PIPED_WIDTH,
    add_command,
    check_file,
    check_folder,
    complain,
    positive,
    positive_number,
    warn,
    write_json,
)
from tutti.commands.run import enter_network
from tutti.errors import UserError

if TYPE_CHECKING:
    from tutti.commands.base import Commands
    from tutti.lab.bench.plan import Plan
    from tutti.lab.bench.record import Bench
    from tutti.lab.bench.rows import Row
    from tutti.launch import LaunchOptions
    from tutti.networks.base import Network

_SIZES = "4KiB:64MiB:x4"
_EXAMPLES = """
  tutti bench                                            all-reduce by every route, 4 KiB to 64 MiB, 4 workers
  tutti bench --route ring native --workers 2 4 8        two routes on three numbers of workers
  tutti bench --op all --sizes 1MiB --quiet              every operation at one size
  tutti bench --op broadcast --route tree "tree(chain)" --sizes 64KiB,1MiB:16MiB:x2
  tutti bench --network "hosts(1Gbit, latency=1ms)"      over links, with what they allow at best beside it
  tutti bench --json - --plot bench.svg                  rows for a program; time against size as a picture
"""


def add(commands: Commands) -> None:
    text = "time operations by every route and size, check each result, and compare with the floor"
    parser = add_command(commands, "bench", _bench, text, _EXAMPLES)
    work = parser.add_argument_group("what is measured")
    text = "all-reduce (default), reduce, broadcast, reduce-scatter, all-gather, gather, scatter, all-to-all, or all"
    work.add_argument("--op", nargs="+", default=["all-reduce"], metavar="OP", help=text)
    work.add_argument("--route", nargs="+", default=["all"], metavar="NAME", help="routes or specs (default: all)")
    text = f"FROM:TO:xFACTOR or a list with commas, of the whole buffer (default: {_SIZES})"
    work.add_argument("--sizes", default=_SIZES, help=text)
    text = "float32 (default), float64, float16 or bfloat16"
    work.add_argument("--dtype", nargs="+", default=["float32"], metavar="DTYPE", help=text)
    length = work.add_mutually_exclusive_group()
    text = "for a route at a size: as many samples as fit, 5 to 200 (default: 0.5)"
    length.add_argument("--seconds", type=positive_number, default=0.5, help=text)
    length.add_argument("--samples", type=positive, help="so many instead, however long they take")
    place = parser.add_argument_group("the workers")
    text = "how many; or several, one after another (default: 4)"
    place.add_argument("--workers", nargs="+", type=positive, metavar="N", help=text)
    place.add_argument("--engine", choices=("processes", "threads"), default="processes", help="(default: processes)")
    text = '"hosts(1Gbit, latency=1ms)": a host per worker (default: loopback)'
    place.add_argument("--network", default="loopback", help=text)
    text = "shared memory and sockets (shared, the default), sockets only (tcp), or torch.distributed's (torch)"
    place.add_argument("--wire", help=text)
    results = parser.add_argument_group("the results")
    text = "where rows, samples and picture go (default: runs/bench/DATE)"
    results.add_argument("--out", type=Path, metavar="DIR", help=text)
    results.add_argument("--json", metavar="FILE", help="write the rows as JSON; - is standard output")
    results.add_argument("--plot", type=Path, metavar="FILE", help="the picture also here: .png, .svg or .pdf")
    results.add_argument("--quiet", action="store_true", help="no progress")


def _bench(args: argparse.Namespace) -> int:
    network = enter_network(args.network)
    from tutti.comm.rendezvous import find_place

    plan, options = _read_plan(args), _read_options(args)
    for each in options:
        _check(each, plan, network)
    place = find_place()
    speaks = place is None or place.rank == 0
    out = args.out or Path("runs") / "bench" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    if speaks:
        _check_files(args, out)
    bench = _measure(plan, options, network, quiet=args.quiet or not speaks)
    return _finish(args, bench, network, out) if speaks else 0


# --- before ----------------------------------------------------------------------------------------------------------


def _read_plan(args: argparse.Namespace) -> Plan:
    from tutti.lab.bench.plan import Plan, find_dtypes, plan_routes
    from tutti.lab.bench.sizes import parse_sizes

    routes, sizes, dtypes = plan_routes(args.op, args.route), parse_sizes(args.sizes), find_dtypes(args.dtype)
    return Plan(routes, sizes, dtypes, args.seconds, args.samples)


def _read_options(args: argparse.Namespace) -> list[LaunchOptions]:
    """One per number of workers."""
    from tutti.comm.rendezvous import WIRES, WireOptions
    from tutti.launch import LaunchOptions, workers_already_started

    wire = args.wire or WireOptions().wire
    if wire not in WIRES:
        raise UserError(f"there is no wire '{wire}'; there is {', '.join(WIRES)}")
    counts = dict.fromkeys(args.workers or [workers_already_started() or 4])
    return [LaunchOptions(workers, args.engine, WireOptions(wire)) for workers in counts]


def _check(options: LaunchOptions, plan: Plan, network: Network) -> None:
    """Everything that can be known to be wrong before the first worker starts."""
    options.check()
    if network.hosts:
        options.check_hosts(str(network))
        network.check(options.workers)
    plan.check(options.workers)


def _check_files(args: argparse.Namespace, out: Path) -> None:
    check_file(args.json, "--json")
    if args.plot is not None:
        from tutti.lab.curves import check_format

        check_format(args.plot, "--plot")
        check_file(str(args.plot), "--plot")
    made_here = not out.exists()
    check_folder(out, "--out")
    if made_here:
        out.rmdir()  # until there is something to put into it


# --- the measurement -------------------------------------------------------------------------------------------------


def _measure(plan: Plan, options: list[LaunchOptions], network: Network, quiet: bool) -> Bench:
    """One number of workers after the other; nothing on a rank that has no worker 0."""
    from tutti.lab.bench.measure import Measured, measure
    from tutti.lab.bench.progress import BenchProgress
    from tutti.lab.bench.record import Bench
    from tutti.lab.bench.rows import make_row
    from tutti.launch import launch

    bench = Bench()
    with BenchProgress(len(options) * plan.points, quiet) as progress:
        for each in options:
            with network.open(each.workers) as fabric:
                warn(fabric.description)
                progress.start(each.workers)
                placed = replace(each, fabric=fabric)
                results = launch(measure, (plan,), placed, progress.event)
            measured = [Measured(**result) for result in results or []]
            bench.networks.append({"workers": each.workers, **(fabric.description or {"asked": str(network)})})
            bench.rows += [make_row(result, each.workers, network, placed.wire_used) for result in measured]
            bench.times += [result.times for result in measured]
    return bench


# --- behind ----------------------------------------------------------------------------------------------------------


def _finish(args: argparse.Namespace, bench: Bench, network: Network, out: Path) -> int:
    """Files and tables; 1 where a result was wrong."""
    from tutti.lab.bench.picture import make_picture
    from tutti.lab.bench.record import describe_conditions
    from tutti.lab.bench.rows import make_json
    from tutti.lab.bench.table import find_wrong
    from tutti.lab.curves import save
    from tutti.lab.saving import Saving

    rows = bench.rows
    with Saving(complain) as saving:
        saving.attempt(lambda: out.mkdir(parents=True, exist_ok=True))
        saving.attempt(lambda: bench.save(out / "bench.json"))
        picture = make_picture(rows, describe_conditions(rows, network))
        for path in (out / "bench.png", *([args.plot] if args.plot is not None else [])):
            saving.attempt(partial(save, picture, path))
        if args.json is not None:
            saving.attempt(lambda: write_json(make_json(rows), args.json))
        saving.attempt(lambda: _show(rows, network, out, args))
    wrong = find_wrong(rows)
    for sentence in wrong:
        complain(sentence)
    return 1 if wrong or saving.problems else 0


def _show(rows: list[Row], network: Network, out: Path, args: argparse.Namespace) -> None:
    """The tables, the files and the findings; on standard error where standard output is JSON."""
    from rich.console import Console

    from tutti.lab.bench.record import describe_conditions
    from tutti.lab.bench.table import make_findings, make_tables

    stream = sys.stderr if args.json == "-" else sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else PIPED_WIDTH, highlight=False)
    for table in make_tables(rows, describe_conditions(rows, network), console.width):
        console.print(table)
        console.print()
    files = {"picture": args.plot or out / "bench.png", "rows and samples": out / "bench.json"}
    console.print("\n".join(f"{what}: {path}" for what, path in files.items()), soft_wrap=True)
    for sentence in make_findings(rows):
        console.print(sentence)
