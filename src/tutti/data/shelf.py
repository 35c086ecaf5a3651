"""The folder of a data set while it is filled.

Whatever is not finished ends in .draft (unpacked, not yet checked; never outlives the command) or in .part (a download
that can be gone on with). A file gets its own name by renaming, when its checksum is right.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tutti.data.dataset import DataSet, File, Progress, SourceFailed
from tutti.data.store import CHUNK, find_file, is_good
from tutti.errors import UserError


class Shelf:
    """`missing` are the files that are not there, or not as they should be."""

    def __init__(self, dataset: DataSet, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.missing = [file for file in dataset.files if not _has(folder, file)]

    def put(self, file: File, stream: BinaryIO) -> None:
        """Keep what the stream holds, if it is the file."""
        draft = self.folder / f"{file.name}.draft"
        try:
            size, sha256 = self._copy(file, stream, draft)
            if (size, sha256) != (file.size, file.sha256):
                found = (
                    f"more than {file.size} bytes" if size > file.size else f"{size} bytes with sha256 {sha256[:12]}..."
                )
                raise SourceFailed(f"its {file.name} has {found} instead of {file.size} with {file.sha256[:12]}...")
            draft.replace(self.folder / file.name)
        finally:
            draft.unlink(missing_ok=True)
        self.missing.remove(file)

    def part(self, name: str) -> Path:
        """Where a download goes, to be gone on with after an interruption."""
        return self.folder / f"{name}.part"

    @contextmanager
    def workspace(self, name: str) -> Iterator[Path]:
        """A folder for a while, on the disk where the files will lie."""
        path = self.folder / f"{name}.draft"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def clear(self, *, parts: bool) -> None:
        """Remove the drafts, also those of a process that was killed; and partial downloads where that is said."""
        for path in [*self.folder.glob("*.draft"), *(self.folder.glob("*.part") if parts else ())]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _copy(self, file: File, stream: BinaryIO, draft: Path) -> tuple[int, str]:
        """(bytes, checksum) of what was copied, which ends with the chunk that makes it too long."""
        digest, size = hashlib.sha256(), 0
        with draft.open("wb") as out:
            while size <= file.size and (chunk := stream.read(CHUNK)):
                out.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                self.progress(min(size, file.size), file.size, f"unpacking {file.name}")
        return size, digest.hexdigest()


@contextmanager
def reserve(folder: Path) -> Iterator[None]:
    """Make the folder and keep other processes from filling it at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)  # which ends the lock, as the end of a killed process does


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another `tutti data get` is filling {folder}; wait until it is done") from None
    except OSError:
        pass  # a file system without locks, as some that are mounted over a network


def _has(folder: Path, file: File) -> bool:
    path = find_file(folder, file.name)
    return path is not None and is_good(path, file)
