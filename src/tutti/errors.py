"""The errors a user may meet. A `UserError` is the user's mistake (exit code 2), a `RunFailed` is not (exit code 1)."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class UserError(ValueError):
    """What was asked for cannot work: the message says what, where, and what would work."""


class RunFailed(RuntimeError):
    """A run began and broke: the message names the worker and its own error."""


class Diverged(RunFailed):
    """Weights or optimizer state differ between workers where the algorithm keeps them equal."""


class Desynchronised(RunFailed):
    """Two workers do not call the same operations in the same order: one would wait for the other for ever."""


def suggest(word: str, choices: Sequence[str], otherwise: str = "") -> str:
    """How a sentence about a word that is none of these ends: the nearest one, or what there is."""
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; {otherwise}" if otherwise else f"; there is {', '.join(choices) or 'none'}"
