"""`tutti catalogue`: every member there is, in a table per axis, or one of them in full."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tutti.commands.base import PIPED_WIDTH, add_command, check_file, write_json

if TYPE_CHECKING:
    from tutti.commands.base import Commands
    from tutti.lab.catalogue import Chapter

_EXAMPLES = """
  tutti catalogue                              a line for every member of every axis
  tutti catalogue collectives                  one axis: algorithms, presets, exchanges, models, tasks, ...
  tutti catalogue ring                         everything called ring, in full: rule, bytes, fields, paper
  tutti catalogue --markdown > docs/catalogue.md
"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "catalogue", _catalogue, "list what specs can be made of", _EXAMPLES)
    parser.add_argument("wanted", metavar="AXIS", nargs="?", help="an axis or a member's name (default: everything)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", metavar="FILE", help="write it as JSON; - is standard output")
    form.add_argument("--markdown", action="store_true", help="print it as Markdown, every member in full")


def _catalogue(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from tutti.lab.catalogue import read_catalogue, select
    from tutti.lab.catalogue_markdown import make_markdown

    check_file(args.json, "--json")
    everything = read_catalogue()
    chapters = select(everything, args.wanted) if args.wanted else everything
    if args.markdown:
        print(make_markdown(chapters), end="")
        return 0
    if args.json is not None:
        write_json([asdict(chapter) for chapter in chapters], args.json)
    if args.json != "-":
        _show(chapters, whole=args.wanted in (None, *(chapter.axis for chapter in everything)))
    return 0


def _show(chapters: list[Chapter], whole: bool) -> None:
    from rich.console import Console

    from tutti.lab.catalogue_screen import make_details, make_overview

    console = Console(highlight=False)
    console.width = min(console.width, PIPED_WIDTH) if console.is_terminal else PIPED_WIDTH
    console.print(make_overview(chapters) if whole else make_details(chapters))
