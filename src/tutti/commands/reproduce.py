"""`tutti reproduce`: measure here what a document has published, and judge its claims."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.commands.base import PIPED_WIDTH, add_command, check_file, check_folder, write_json
from tutti.errors import RunFailed, UserError

if TYPE_CHECKING:
    from tutti.commands.base import Commands
    from tutti.lab.reproductions.base import Reproduction, Story

_EXAMPLES = """
  tutti reproduce                              which there are
  tutti reproduce ring-lenet --quick           a first answer within ten minutes
  tutti reproduce vgg-cifar                    the whole of it; stopped, the same command goes on where it was
  tutti reproduce vgg-cifar --page docs/results     also a page of Markdown with its figures
"""
_NEEDS = """
import json, sys
from tutti.lab.reproductions.base import find
found = find(sys.argv[1])
print(json.dumps([found.data, sorted({job.network for quick in (True, False) for job in found.jobs(quick)})]))
"""


def add(commands: Commands) -> None:
    text = "measure here what a document has published, and judge its claims"
    parser = add_command(commands, "reproduce", _reproduce, text, _EXAMPLES)
    parser.add_argument("name", metavar="NAME", nargs="?", help="which one (default: list them)")
    parser.add_argument("--quick", action="store_true", help="less of everything: within ten minutes on two cores")
    parser.add_argument("--fresh", action="store_true", help="do not keep the runs that are finished already")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where records and report go (default: runs/reproduce/…)"
    )
    parser.add_argument("--page", type=Path, metavar="DIR", help="also write NAME.md and its pictures there")
    parser.add_argument("--json", metavar="FILE", help="write the verdicts as JSON; - is standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _reproduce(args: argparse.Namespace) -> int:
    if args.name is None:
        return _list()
    check_file(args.json, "--json")
    _enter(args.name, args.quiet)
    from tutti.lab.experiment import forget, run_jobs
    from tutti.lab.reproductions.base import find
    from tutti.lab.screen import Screen
    from tutti.lab.story import write_page

    reproduction = find(args.name)
    out = args.out or Path("runs") / "reproduce" / (args.name + ("-quick" if args.quick else ""))
    check_folder(out, "--out")
    if args.page:
        check_folder(args.page, "--page")
    jobs, repeats = reproduction.jobs(args.quick), 1 if args.quick else reproduction.repeats
    if args.fresh:
        forget(jobs, repeats, out)
    with Screen(quiet=args.quiet) as screen:
        results = run_jobs(jobs, repeats, out, screen)
    story = reproduction.tell(results)
    report = write_page(args.name, reproduction, story, results, out, args.page)
    _show(reproduction, story, report, args.json)
    return 0


def _enter(name: str, quiet: bool) -> None:
    """Get the data while there is a way out, then move to where hosts can be made; all before torch has threads."""
    from tutti.networks.base import Network
    from tutti.spec import parse

    datasets, networks = _ask(name)
    for data in datasets:
        command = [sys.executable, "-m", "tutti", "data", "get", data, *(["--quiet"] if quiet else [])]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise RunFailed(f"the data set {data} is needed and could not be fetched")
    for network in networks:
        parse(network, Network).enter()


def _ask(name: str) -> tuple[list[str], list[str]]:
    """The data sets and networks that a reproduction needs, from a process of its own, which may import torch."""
    asked = subprocess.run([sys.executable, "-c", _NEEDS, name], capture_output=True, text=True)
    if asked.returncode == 0:
        datasets, networks = json.loads(asked.stdout)
        return datasets, networks
    last = asked.stderr.strip().rpartition("\n")[2]
    if last.startswith("tutti.errors.UserError: "):
        raise UserError(last.partition(": ")[2])
    raise RunFailed(f"the reproduction '{name}' cannot be read: {last}")


def _list() -> int:
    from tutti.lab.reproductions.base import find, names

    width = max(map(len, names()))
    for name in names():
        reproduction = find(name)
        print(f"{name:<{width}}  {reproduction.title}: {reproduction.document}")
    return 0


def _show(reproduction: Reproduction, story: Story, report: Path, json_to: str | None) -> None:
    from dataclasses import asdict

    from rich.console import Console

    from tutti.lab.story import make_claims_table

    stream = sys.stderr if json_to == "-" else sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else PIPED_WIDTH)
    console.print(f"[bold]{reproduction.title}[/bold]")
    console.print(make_claims_table(story))
    console.print(story.finding, markup=False)
    console.print(f"report: {report}", highlight=False, markup=False, soft_wrap=True)
    if json_to is not None:
        write_json({"finding": story.finding, "claims": [asdict(claim) for claim in story.claims]}, json_to)
