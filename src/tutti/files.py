"""Reading what somebody else has written, and writing what must not be lost.

A file that is read is a regular one of a bounded size: a device such as /dev/zero has no end, a pipe may never answer,
and a file of gigabytes is none of ours. What cannot be written where it belongs is written elsewhere.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TEXT_LIMIT = 1 << 20  # bytes of a file that a user writes by hand
RECORD_LIMIT = 1 << 30  # bytes of a file that tutti writes


def read_text(path: Path, limit: int = TEXT_LIMIT, *, regular: bool = True) -> str:
    """The text of a file; an OSError or a UnicodeDecodeError where it is none, or is longer than the limit. What a user
    hands over on purpose may be a pipe instead of a regular file."""
    with open(path, "rb", opener=_open_without_waiting if regular else None) as file:
        found = os.fstat(file.fileno())
        if regular and not stat.S_ISREG(found.st_mode):
            raise OSError(None, "it is no regular file", str(path))
        if found.st_size > limit:
            raise OSError(None, f"it has {found.st_size:,} bytes, and at most {limit:,} are read", str(path))
        content = file.read(limit + 1)  # a file of /proc says that it is empty
    if len(content) > limit:
        raise OSError(None, f"it has more than the {limit:,} bytes that are read", str(path))
    return content.decode()


def read_json(path: Path, limit: int = RECORD_LIMIT) -> Any:
    """What a JSON file holds; an OSError where it cannot be read, a ValueError where it is damaged."""
    try:
        return json.loads(read_text(path, limit))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe is opened at once, although nobody may write to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def name_problem(error: OSError) -> str:
    """The reason that the system gives, which not every error has."""
    return error.strerror or str(error) or type(error).__name__


# --- writing ---------------------------------------------------------------------------------------------------------


class Refuge:
    """Writes files that must not be lost, where they belong or else in one new folder on another disk."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def write(self, path: Path, write: Callable[[Path], None]) -> str:
        """`write` makes the file whole or not at all, or raises an OSError; the problem in one sentence, if any."""
        try:
            write(path)
            return ""
        except OSError as error:
            reason = name_problem(error)
        for folder in self._find_folders():
            try:
                write(folder / path.name)
            except OSError:
                if folder != self._folder:
                    folder.rmdir()
                continue
            self._folder = folder
            return f"cannot write {path}: {reason}; it was written to {folder / path.name} instead"
        return f"cannot write {path}: {reason}; and no other folder takes it"

    def _find_folders(self) -> Iterator[Path]:
        """New ones, each made when it is asked for; the one that took the last file first."""
        if self._folder is not None:
            yield self._folder
        for find in (tempfile.gettempdir, Path.cwd, Path.home):
            try:
                yield Path(tempfile.mkdtemp(prefix="tutti-unsaved-", dir=find()))
            except (OSError, RuntimeError):  # of Path.home, where there is none
                continue
