"""The errors a user may meet. A `UserError` is the user's mistake (exit code 2), a `RunFailed` is not (exit code 1)."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_LONGEST = 8000  # characters of a message; what a user typed may have millions
_SUGGESTED = 100  # characters of a word for which a similar one is looked for: comparing takes quadratic time


class UserError(ValueError):
    """What was asked for cannot work: the message says what, where, and what would work."""

    def __str__(self) -> str:
        return printable(super().__str__())


class NotWritten(UserError):
    """A file cannot be written: the disk is full, or it is not the user's to write (exit code 1)."""


class RunFailed(RuntimeError):
    """A run began and broke: the message names the worker and its own error."""

    def __str__(self) -> str:
        return printable(super().__str__())


class Diverged(RunFailed):
    """Weights or optimizer state differ between workers where the algorithm keeps them equal."""


class Desynchronised(RunFailed):
    """Two workers do not call the same operations in the same order: one would wait for the other for ever."""


def printable(text: str, longest: int = _LONGEST) -> str:
    """The text as a terminal may show it: control characters are escaped, and the middle of a very long one left out.

    Lines and tabs stay. A text from a user, a file or another worker may hold sequences that command a terminal.
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} [{len(text) - 2 * half:,} characters left out] {text[-half:]}"
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def suggest(word: str, choices: Sequence[str], otherwise: str = "") -> str:
    """How a sentence about a word that is none of these ends: the nearest one, or what there is."""
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.5) if len(word) <= _SUGGESTED else []
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; {otherwise}" if otherwise else f"; there is {', '.join(choices) or 'none'}"
