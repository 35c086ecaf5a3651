"""Fetch a data set: from the first source that has it, checked, and complete or not at all under its names."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tutti.data.dataset import DataSet, Progress, SourceFailed
from tutti.data.shelf import Shelf, reserve
from tutti.data.sources import Source
from tutti.data.store import find_whole, home
from tutti.errors import UserError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Fetched:
    """Where the data set lies now, and the source it came from; None where it had been there before."""

    folder: Path
    source: Source | None


def get(dataset: DataSet, folder: Path | None, progress: Progress) -> Fetched:
    """Fetch what is missing of the data set into `folder`, or into the user's place for data where that is None."""
    there = find_whole(dataset, folder)
    if there is not None:
        return Fetched(there, None)
    place = home(dataset, folder)
    with _sentences(dataset, place), reserve(place):
        shelf = Shelf(dataset, place, progress)
        shelf.clear(parts=False)
        try:
            source = _ask_all(dataset, shelf)
            shelf.clear(parts=True)
        except OSError as error:
            shelf.clear(parts=error.errno in _DISK_FULL)
            raise
        except BaseException:  # an interruption too leaves nothing but what can be gone on with
            shelf.clear(parts=False)
            raise
    return Fetched(place, source)


def _ask_all(dataset: DataSet, shelf: Shelf) -> Source:
    reasons = []
    for source in dataset.sources:
        shelf.progress(0, None, f"asking {source}")
        try:
            source.fetch(shelf)
            return source
        except SourceFailed as failure:
            reasons.append(f"\n  {source}: {failure}")
    missing = ", ".join(file.name for file in shelf.missing)
    raise UserError(
        f"cannot fetch {dataset.name} from any of its {len(reasons)} sources; put these files into {shelf.folder} "
        f"yourself, as they are or as .gz: {missing}{''.join(reasons)}"
    )


@contextmanager
def _sentences(dataset: DataSet, place: Path) -> Iterator[None]:
    """What the disk refuses, in a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            room = f"{2 * dataset.size / 1e6:.0f} MB"  # the files, and what they are unpacked from
            raise UserError(
                f"the disk of {place} is full: fetching {dataset.name} takes up to {room} there; "
                "make room or choose another folder with --data DIR"
            ) from None
        raise UserError(f"cannot write to {place}: {error.strerror}; choose another folder with --data DIR") from None
