"""The errors a user may meet. A `UserError` is the user's mistake (exit code 2), a `RunFailed` is not (exit code 1)."""

from __future__ import annotations


class UserError(ValueError):
    """What was asked for cannot work: the message says what, where, and what would work."""


class RunFailed(RuntimeError):
    """A run began and broke: the message names the worker and its own error."""
