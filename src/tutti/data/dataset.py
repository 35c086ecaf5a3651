"""What a data set is: its files with their checksums, where they come from, and where people keep them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tutti.data.sources import Source

Progress = Callable[[int, int | None, str], None]  # bytes done, bytes in all where that is known, what is going on


class SourceFailed(Exception):
    """A source has not brought the files: the message is its reason, and the next source is asked."""


@dataclass(frozen=True)
class File:
    """One file as it is kept, which is uncompressed."""

    name: str
    size: int
    sha256: str
    md5: str  # the older checksum, by which people compare it with what others have


@dataclass(frozen=True)
class DataSet:
    """Declared by the task that trains on it, under the task's name; sources are asked in their order."""

    name: str
    train: int
    test: int
    classes: int
    files: tuple[File, ...]
    sources: tuple[Source, ...]
    layouts: tuple[str, ...] = ()  # subfolders in which other programs keep the same files

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)
