"""`tutti net`: try a network without training on it, and remove what crashed runs left."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tutti.commands.base import PIPED_WIDTH, add_command, check_file, positive, warn, write_json
from tutti.errors import UserError

if TYPE_CHECKING:
    from tutti.commands.base import Commands

_EXAMPLES = """
  tutti net try "hosts(1Gbit, cpu=0.5)" --workers 4     set it up, measure every link and quota, take it down
  tutti net clean                                       remove what a run that was killed has left behind
"""


def add(commands: Commands) -> None:
    text = "try a network of hosts, or clean up after a run that was killed"
    net = add_command(commands, "net", None, text, _EXAMPLES)
    actions = net.add_subparsers(title="actions", required=True, metavar="ACTION")
    trial = add_command(actions, "try", _try, "set a network up, measure it, and take it down", _EXAMPLES)
    trial.add_argument("network", metavar="SPEC", help='such as "hosts(200Mbit, cpu=0.5, latency=5ms)"')
    trial.add_argument("--workers", type=positive, default=4, help="how many hosts (default: 4)")
    trial.add_argument("--json", metavar="FILE", help="write what was measured as JSON; - is standard output")
    text = "remove the CPU quotas of runs that were killed; everything else went with them"
    add_command(actions, "clean", _clean, text, _EXAMPLES)


def _try(args: argparse.Namespace) -> int:
    from tutti.networks.base import Network
    from tutti.spec import parse

    network = parse(args.network, Network)
    if not network.hosts:
        raise UserError(f"there is nothing to try in '{network}'; ask for hosts, as in \"hosts(1Gbit, cpu=0.5)\"")
    check_file(args.json, "--json")
    network.check(args.workers)
    network.enter()
    with network.open(args.workers) as fabric:
        description = fabric.description or {}
    warn(description)
    if args.json is not None:
        write_json(description, args.json)
    if args.json != "-":
        _show(description)
    return 0


def _show(description: dict[str, Any]) -> None:
    from rich.console import Console

    from tutti.lab.network import make_table

    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(make_table(description))


def _clean(_: argparse.Namespace) -> int:
    from tutti.hosts.quota import left_behind, sweep

    removed = sweep()
    for folder in removed:
        print(f"removed {folder}")
    kept = left_behind()
    if kept:
        raise UserError(f"cannot remove {kept[0]}: it is another user's, or still in use")
    if not removed:
        print("there was nothing to clean")
    return 0
