"""The command `tutti`. Exit codes: 0 done, 1 a run failed, 2 a mistake in what was asked for, 130 interrupted."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import pkgutil
import sys
from contextlib import suppress

from tutti import __version__, commands
from tutti.commands.base import Parser, complain
from tutti.errors import NotWritten, RunFailed, UserError
from tutti.files import name_problem

_OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
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
        code = int(args.command(args))
        sys.stdout.flush()
        return code
    except NotWritten as error:
        complain(str(error))
        return 1
    except UserError as error:
        complain(str(error))
        return 2
    except OSError as error:
        return _report_file(error)
    except RunFailed as error:
        complain("\n".join([str(error), *getattr(error, "__notes__", [])]))
        return 1
    except KeyboardInterrupt:
        return _interrupted(args)


def _report_file(error: OSError) -> int:
    """A file or folder that nobody has looked after; what is not about one is a mistake of the program."""
    if isinstance(error, BrokenPipeError) and error.filename is None:
        _let_go_of_output()
        return 1  # the reader of standard output wants no more
    if error.filename is None and error.errno not in _OF_DISKS:
        raise error
    if error.filename is None:
        _let_go_of_output()
    where = error.filename or "a file or standard output"
    complain(f"{where}: {name_problem(error)}; choose another place")
    return 1 if error.errno in _OF_DISKS else 2


def _let_go_of_output() -> None:
    """What is still to be written to standard output is dropped, or Python would try again at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
