"""`tutti doctor`: what this machine has and how fast its wires are."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tutti.commands.base import add_command, check_file, write_json

if TYPE_CHECKING:
    from tutti.commands.base import Commands

_EXAMPLES = """
  tutti doctor                  a line for everything that was looked at, with advice where something is missing
  tutti doctor --json -         the same for a program
"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "doctor", _doctor, "say what this machine has and how fast its wires are", _EXAMPLES)
    parser.add_argument("--json", metavar="FILE", help="write the checks as JSON; - is standard output")


def _doctor(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from rich.console import Console

    from tutti.lab.doctor import examine, make_report

    check_file(args.json, "--json")
    checks = examine()
    if args.json is not None:
        write_json([asdict(check) for check in checks], args.json)
    if args.json != "-":
        Console().print(make_report(checks))
    return 1 if any(check.status == "problem" for check in checks) else 0
