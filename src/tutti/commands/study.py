"""`tutti study`: what follows from a choice, over many settings and several seeds."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.commands.base import Parser, add_command, add_inquiry, conduct, enter, print_list, print_needs

if TYPE_CHECKING:
    from tutti.commands.base import Commands
    from tutti.lab.studies.base import Option, Study

_EXAMPLES = """
  tutti study                                  which there are
  tutti study aggregation --help               what can be chosen in one of them
  tutti study aggregation --quick              a first answer within minutes
  tutti study aggregation --seeds 5            stopped, the same command goes on where it was
  tutti study aggregation --page docs/results  also a page of Markdown with its figures
  tutti study sweep --algorithms ring --quick  which learning rate is best, for --tuned
"""
_OUT = Path("runs") / "study"


def add(commands: Commands) -> None:
    text = "find out what follows from a choice, over many settings and several seeds"
    parser = add_command(commands, "study", _study, text, _EXAMPLES)
    parser.set_defaults(goes_on=True)
    parser.usage = "tutti study [-h] [NAME [OPTION ...]]"
    which = "which one, and its own options, which its --help shows (default: list them)"
    parser.add_argument("words", metavar="NAME [OPTION ...]", nargs=argparse.REMAINDER, help=which)


def _study(args: argparse.Namespace) -> int:
    if not args.words:
        return _list()
    name, *words = args.words
    if not {"-h", "--help", "--needs"}.intersection(words):
        enter(["study", name, *words], quiet="--quiet" in words)
    options, study = _read(name, words)
    if options.needs:
        return print_needs(study.jobs())
    out = _OUT / (name + ("-quick" if options.quick else ""))
    return conduct(name, study, study.jobs(), 1, out, options)


def _list() -> int:
    from tutti.lab.studies.base import find, names

    return print_list({name: find(name).question for name in names()})


def _read(name: str, words: list[str]) -> tuple[argparse.Namespace, Study]:
    """What was asked for, and of which study."""
    from tutti.lab.studies.base import find, options_of

    cls = find(name)
    given = _make_parser(name, cls).parse_args(words)
    usual = {option.name: option.quick if given.quick else option.usual for option in options_of(cls)}
    asked: dict[str, Any] = {key: getattr(given, key, value) for key, value in usual.items()}
    repeated = {key: tuple(value) for key, value in asked.items() if isinstance(value, list)}
    return given, cls(**{**asked, **repeated})


def _make_parser(name: str, cls: type[Study]) -> argparse.ArgumentParser:
    from tutti.lab.studies.base import options_of

    parser = Parser(prog=f"tutti study {name}", description=f"{cls.title}. {cls.question}", allow_abbrev=False)
    own = parser.add_argument_group("the study")
    for each in options_of(cls):
        text = each.text + _say_default(each)
        flag = f"--{each.name.replace('_', '-')}"
        kind: dict[str, Any] = {"nargs": "?", "const": True} if each.is_flag else {}
        if each.is_repeated:
            kind = {"action": "append"}
        own.add_argument(flag, dest=each.name, type=_reader(each), default=argparse.SUPPRESS, help=text, **kind)
    add_inquiry(parser.add_argument_group("the results"), "less of everything: within minutes on two cores", str(_OUT))
    return parser


def _say_default(option: Option) -> str:
    """Nothing where the help itself says what no value stands for."""
    if option.usual in ((), None, False):
        return ""
    usual, quick = (option.write(value) for value in (option.usual, option.quick))
    return f" (default: {usual})" if quick == usual else f" (default: {usual}, quick: {quick})"


def _reader(option: Option) -> Callable[[str], Any]:
    from tutti.spec import SpecError

    def read(word: str) -> Any:
        try:
            return option.read(word)
        except SpecError as error:
            raise argparse.ArgumentTypeError(error.message) from None

    return read
