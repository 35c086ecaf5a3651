"""The command `tutti`. Exit codes: 0 done, 1 a run failed, 2 a mistake in what was asked for, 130 interrupted."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys

from tutti import __version__, commands
from tutti.commands.base import Parser
from tutti.errors import RunFailed, UserError

_FIRST = ("run", "report", "runs")  # in the help, before the others

_EXAMPLES = """examples:
  tutti compare                                    the race: LeNet-5 on digits, 4 workers, seven ways to average
  tutti compare ring ddp torch-ddp --workers 2     the same work, three ways, two workers
  tutti run ddp --epochs 3                         one run
  tutti bench --route all                          every route of an all-reduce, from 4 KiB to 64 MiB
  tutti doctor                                     what this machine has, and how fast its wires are

`tutti COMMAND --help` has more of them.
"""


def main(argv: list[str] | None = None) -> int:
    args = argparse.Namespace()
    try:
        args = make_parser().parse_args(argv)
        return int(args.command(args))
    except UserError as error:
        print(f"tutti: {error}", file=sys.stderr)
        return 2
    except PermissionError as error:
        if error.filename is None:
            raise
        print(f"tutti: {error.filename}: {error.strerror}; choose another place", file=sys.stderr)
        return 2
    except RunFailed as error:
        print("\n".join([f"tutti: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _interrupted(args)


def _interrupted(args: argparse.Namespace) -> int:
    again = "; the same command goes on where it was" if getattr(args, "goes_on", False) else ""
    print(f"tutti: interrupted; nothing is left running{again}", file=sys.stderr)
    return 130


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tutti",
        description="Data-parallel PyTorch training with every way for workers to agree, and a lab that measures them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tutti {__version__}")
    group = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)
    found = [info.name for info in pkgutil.iter_modules(commands.__path__) if info.name != "base"]
    for name in sorted(found, key=lambda n: (_FIRST.index(n) if n in _FIRST else len(_FIRST), n)):
        importlib.import_module(f"tutti.commands.{name}").add(group)
    return parser
