"""What commands share: how one is added to the parser, the kinds of numbers it takes, how results are written, and how
an inquiry (a reproduction or a study) goes from its options to its report.

A command is a file of this folder with a function `add(commands)`. Nothing heavy is imported at its top: `tutti --help`
answers at once, and torch comes with the first command that needs it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tutti.errors import NotWritten, RunFailed, UserError, printable, suggest
from tutti.files import name_problem

if TYPE_CHECKING:
    from tutti.lab.experiment import Job
    from tutti.lab.inquiry import Inquiry, Story

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_TRIAL = 1 << 16  # bytes that must fit where results go
_LONGEST_TRACE = 200_000  # characters
_LONGEST = 1000  # characters of what is said of a word that was typed
PIPED_WIDTH = 110  # columns where nobody says how wide the place is


class Parser(argparse.ArgumentParser):
    """A mistake gets one sentence, and what begins as a negative number is a value, not an option."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """With the words themselves, for a command that wants to know which of its options were typed."""
        found, rest = super().parse_known_args(args, namespace)
        if found is not None and args is not None and not hasattr(found, "words"):
            found.words = list(args)
        return found, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """In our words: the choices of an option, or (without a name to go before) the commands."""
        if action.choices is None or value in action.choices:
            return
        what = action.metavar.lower() if isinstance(action.metavar, str) else "choice"
        advice = suggest(str(value), [str(choice) for choice in action.choices])
        raise argparse.ArgumentError(action if action.option_strings else None, f"there is no {what} '{value}'{advice}")

    def error(self, message: str) -> NoReturn:
        said = printable(message, _LONGEST)
        self.exit(2, f"tutti: {said}{' ' if said.endswith('?') else '; '}see {self.prog} --help\n")


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


def find_typed(add: Callable[[Commands], None], name: str, words: list[str]) -> dict[str, Any]:
    """Which options of a command stand among the words, whether or not they are the default."""
    groups: Commands = argparse.ArgumentParser(prog="tutti").add_subparsers(parser_class=Parser)
    add(groups)
    parser = groups.choices[name]
    for action in parser._actions:  # there is no public list of them
        action.default = argparse.SUPPRESS
    found = vars(parser.parse_args(words))
    options = {action.dest for action in parser._actions}
    return {key: value for key, value in found.items() if key in options}


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
    trial = out / ".tutti"
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            trial.write_bytes(bytes(_TRIAL))  # a full disk still takes the name of a file
        finally:
            trial.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {name_problem(error)}; choose another {option}") from None


def check_place(folder: Path, option: str) -> None:
    """The same for a folder that is made at the end."""
    there = next(place for place in (folder, *folder.resolve().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"cannot write to {folder}: {there} is a file, or not yours to write; choose another {option}")


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
        complain(doubt)


def complain(sentence: str) -> None:
    """A line on standard error, or more with the traces of workers, as a terminal may show it."""
    print(f"tutti: {printable(sentence, _LONGEST_TRACE)}", file=sys.stderr)


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
        raise NotWritten(f"cannot write {to}: {name_problem(error)}") from None


# --- inquiries -------------------------------------------------------------------------------------------------------


def add_inquiry(parser: argparse._ActionsContainer, quick: str, out: str) -> None:
    """What every inquiry can be told; `quick` is what that means for it, `out` where its results go."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--fresh", action="store_true", help="do not keep the runs that are finished already")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where records and report go (default: {out}/…)")
    parser.add_argument("--page", type=Path, metavar="DIR", help="also write NAME.md and its pictures there")
    parser.add_argument("--json", metavar="FILE", help="write finding and verdicts as JSON; - is standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--needs", action="store_true", help=argparse.SUPPRESS)  # for `enter`


def print_list(texts: dict[str, str]) -> int:
    """Names, and what each is."""
    width = max(map(len, texts))
    for name, text in texts.items():
        print(f"{name:<{width}}  {text}")
    return 0


def enter(words: list[str], quiet: bool) -> None:
    """Get the data that `tutti WORDS` needs while there is a way out, then move to where hosts can be made.

    All before torch has threads, so another process is asked what is needed: it may import torch.
    """
    from tutti.networks.base import Network
    from tutti.spec import parse

    datasets, networks = _ask(words)
    for data in datasets:
        command = [sys.executable, "-m", "tutti", "data", "get", data, *(["--quiet"] if quiet else [])]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise RunFailed(f"the data set {data} is needed and could not be fetched")
    for network in networks:
        parse(network, Network).enter()


def _ask(words: list[str]) -> tuple[list[str], list[str]]:
    command = [sys.executable, "-m", "tutti", *words, "--needs"]
    asked = subprocess.run(command, capture_output=True, text=True)
    if asked.returncode == 0:
        datasets, networks = json.loads(asked.stdout)
        return datasets, networks
    said = asked.stderr.strip()
    if asked.returncode == 2:
        raise UserError(said.removeprefix("tutti: "))
    raise RunFailed(f"tutti {' '.join(words)} cannot be read: {said.rpartition(chr(10))[2]}")


def print_needs(jobs: list[Job]) -> int:
    """The answer: data sets and networks."""
    from tutti.tasks.base import find_task

    tasks = [find_task(task) for task in dict.fromkeys(job.plan.task for job in jobs)]
    datasets = {task.data_set.name for task in tasks if task.data_set is not None}
    print(json.dumps([sorted(datasets), sorted({job.network for job in jobs})]))
    return 0


def conduct(name: str, inquiry: Inquiry, jobs: list[Job], repeats: int, out: Path, args: argparse.Namespace) -> int:
    """Run what is not there yet, and leave a report; `out` is where, unless --out says otherwise."""
    from tutti.lab.experiment import run_jobs
    from tutti.lab.record import describe_command
    from tutti.lab.saving import Saving
    from tutti.lab.screen import Screen
    from tutti.lab.story import write_page

    out = args.out or out
    check_file(args.json, "--json")
    check_folder(out, "--out")
    if args.page:
        check_folder(args.page, "--page")
    with Saving(complain) as saving:
        with Screen(quiet=args.quiet) as screen:
            results = run_jobs(jobs, repeats, out, screen, args.fresh, follows=inquiry, saving=saving)
        story, places = inquiry.tell(results), list[str]()
        page = partial(write_page, name, inquiry, story, results, out, args.page, describe_command())
        saving.attempt(lambda: places.append(f"report: {page()}"))
        saving.attempt(lambda: places.extend(inquiry.settle(results)))
        saving.attempt(lambda: _show(inquiry.title, story, places, args.json))
    return 1 if saving.problems else 0


def _show(title: str, story: Story, places: list[str], json_to: str | None) -> None:
    from dataclasses import asdict

    from rich.console import Console

    from tutti.lab.story import make_claims_table, make_screen_table

    stream = sys.stderr if json_to == "-" else sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else PIPED_WIDTH)
    console.print(f"[bold]{title}[/bold]")
    for table in story.summary:
        console.print(make_screen_table(table))
        console.print(f"{table.caption}\n", style="dim", highlight=False, markup=False)
    if story.claims:
        console.print(make_claims_table(story))
    console.print(story.finding, markup=False)
    for place in places:
        console.print(place, highlight=False, markup=False, soft_wrap=True)
    if json_to is not None:
        told = {"finding": story.finding, "claims": [asdict(claim) for claim in story.claims]}
        write_json({**told, "figures": story.figures} if story.figures else told, json_to)
