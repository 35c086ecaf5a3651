"""`tutti reproduce`: measure here what a document has published, and judge its claims."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.commands.base import add_command, add_inquiry, conduct, enter, print_list, print_needs

if TYPE_CHECKING:
    from tutti.commands.base import Commands

_EXAMPLES = """
  tutti reproduce                              which there are
  tutti reproduce ring-lenet --quick           a first answer within ten minutes
  tutti reproduce vgg-cifar                    the whole of it; stopped, the same command goes on where it was
  tutti reproduce vgg-cifar --page docs/results     also a page of Markdown with its figures
"""
_OUT = Path("runs") / "reproduce"


def add(commands: Commands) -> None:
    text = "measure here what a document has published, and judge its claims"
    parser = add_command(commands, "reproduce", _reproduce, text, _EXAMPLES)
    parser.set_defaults(goes_on=True)
    parser.add_argument("name", metavar="NAME", nargs="?", help="which one (default: list them)")
    add_inquiry(parser, "less of everything: within ten minutes on two cores", str(_OUT))


def _reproduce(args: argparse.Namespace) -> int:
    if args.name is None:
        return _list()
    if args.needs:
        return _print_needs(args.name)
    enter(["reproduce", args.name], args.quiet)
    from tutti.lab.reproductions.base import find

    reproduction = find(args.name)
    jobs, repeats = reproduction.jobs(args.quick), 1 if args.quick else reproduction.repeats
    out = _OUT / (args.name + ("-quick" if args.quick else ""))
    return conduct(args.name, reproduction, jobs, repeats, out, args)


def _print_needs(name: str) -> int:
    from tutti.lab.reproductions.base import find

    return print_needs([*find(name).jobs(True), *find(name).jobs(False)])


def _list() -> int:
    from tutti.lab.reproductions.base import find, names

    return print_list({name: f"{find(name).title}: {find(name).document}" for name in names()})
