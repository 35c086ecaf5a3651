"""What commands share: how one is added to the parser, the kinds of numbers it takes, and how results are written.

A command is a file of this folder with a function `add(commands)`. Nothing heavy is imported at its top: `tutti --help`
answers at once, and torch comes with the first command that needs it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tutti.errors import UserError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

PIPED_WIDTH = 110  # columns where nobody says how wide the place is


class Parser(argparse.ArgumentParser):
    """A mistake gets one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tutti: {message}; see {self.prog} --help\n")


def add_command(
    commands: Commands, name: str, function: Callable[[argparse.Namespace], int] | None, text: str, examples: str
) -> argparse.ArgumentParser:
    """A command that calls `function`, or has commands of its own (None); its help ends with the examples."""
    parser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"examples:\n{examples.rstrip()}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=function)
    return parser


# --- kinds of numbers ------------------------------------------------------------------------------------------------


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"takes a whole number from 1, not '{text}'")
    return int(text)


def natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"takes a whole number from 0, not '{text}'")
    return int(text)


def positive_number(text: str) -> float:
    return _number(text, lambda x: 0 < x < float("inf"), "a number above 0")


def fraction(text: str) -> float:
    return _number(text, lambda x: 0 <= x < 1, "a number from 0 and below 1")


def _number(text: str, good: Callable[[float], bool], wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not good(value):
        raise argparse.ArgumentTypeError(f"takes {wanted}, not '{text}'")
    return value


# --- results ---------------------------------------------------------------------------------------------------------


def check_folder(out: Path, option: str) -> None:
    """Where results will go must be there before an hour of work, not after."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".tutti").touch()
        (out / ".tutti").unlink()
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another {option}") from None


def check_file(target: str | None, option: str) -> None:
    """The same for one file; - is standard output."""
    if target in (None, "-"):
        return
    path = Path(str(target))
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} for {option} {target}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"cannot write {option} {target}: it is a folder, or not yours to write")


def warn(network: dict[str, Any] | None) -> None:
    """Say what was found wrong with a network when it was measured."""
    from tutti.lab.network import find_doubts

    for doubt in find_doubts(network):
        print(f"tutti: {doubt}", file=sys.stderr)


def write_json(value: Any, to: str) -> None:
    write_text(json.dumps(value, indent=2) + "\n", to)


def write_text(text: str, to: str) -> None:
    """To a file, or to standard output where it is called -."""
    if to == "-":
        print(text, end="")
        return
    try:
        Path(to).write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {to}: {error.strerror}") from None
