"""Where data sets lie on this machine, and whether what lies there is whole.

The root is the folder a user gives, else $TUTTI_DATA, else the cache. A data set has a subfolder of its name; in a
folder that is the user's it may also lie directly, or as other programs lay it out.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shlex
from pathlib import Path
from typing import BinaryIO, cast

from tutti.data.dataset import DataSet, File
from tutti.data.formats import GZIP_ERRORS
from tutti.errors import UserError
from tutti.machine import find_cache

CHUNK = 1 << 20
_SMALL = 1 << 20  # bytes; a file up to this size is checked whenever it is used


def home(dataset: DataSet, folder: Path | None) -> Path:
    """The folder into which the data set is fetched."""
    return _root(folder) / dataset.name


def places(dataset: DataSet, folder: Path | None) -> list[Path]:
    """The folders in which the data set is looked for, in this order."""
    root, own = _root(folder), home(dataset, folder)
    if folder is None and not os.environ.get("TUTTI_DATA"):
        return [own]
    return [own, root, *(root / layout for layout in dataset.layouts)]


def find(dataset: DataSet, folder: Path | None) -> dict[str, Path]:
    """The path of every file by its name, all from one place; as .gz where there is no plain one."""
    looked = places(dataset, folder)
    refused = []
    for place in looked:
        found = files_in(dataset, place)
        if len(found) == len(dataset.files):
            impostor = _impostor(dataset, found)
            if impostor is None:
                return found
            refused.append(f"{impostor} has another checksum than that of {dataset.name}")
        elif found:
            missing = ", ".join(file.name for file in dataset.files if file.name not in found)
            refused.append(f"{place} has no {missing}")
    wrong = "; ".join(refused) or f"looked in {', '.join(map(str, looked))}"
    raise UserError(f"the data set {dataset.name} is not here: {wrong}; fetch it with: {command(dataset, folder)}")


def find_whole(dataset: DataSet, folder: Path | None) -> Path | None:
    """The place where every file is there and has its checksum."""
    return next((place for place in places(dataset, folder) if not list_faults(dataset, place)), None)


def list_faults(dataset: DataSet, place: Path) -> list[str]:
    """What is wrong with the data set in this place; nothing where it is whole."""
    found = files_in(dataset, place)
    missing = [f"{file.name} is missing" for file in dataset.files if file.name not in found]
    return missing or [f"{file.name} is damaged" for file in dataset.files if not is_good(found[file.name], file)]


def files_in(dataset: DataSet, place: Path) -> dict[str, Path]:
    paths = {file.name: find_file(place, file.name) for file in dataset.files}
    return {name: path for name, path in paths.items() if path is not None}


def find_file(place: Path, name: str) -> Path | None:
    """The file, plain or else as .gz."""
    return next((path for path in (place / name, place / f"{name}.gz") if path.is_file()), None)


def open_plain(path: Path) -> BinaryIO:
    """The contents as they are when unpacked."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def is_good(path: Path, file: File) -> bool:
    """Whether this is the file, by its checksum."""
    return _measure(path, file.size) == (file.size, file.sha256)


def command(dataset: DataSet, folder: Path | None) -> str:
    """What to type to fetch the data set to where it would be found."""
    return f"tutti data get {dataset.name}" + (f" --data {shlex.quote(str(folder))}" if folder else "")


def _impostor(dataset: DataSet, found: dict[str, Path]) -> Path | None:
    """A file with the right name and size and the wrong contents: MNIST and Fashion-MNIST name all their files alike.

    Files of another size pass: whoever has made a data set of their own in the format may train on it.
    """
    for file in dataset.files:
        if file.size <= _SMALL:
            size, sha256 = _measure(found[file.name], file.size)
            if size == file.size and sha256 != file.sha256:
                return found[file.name]
    return None


def _measure(path: Path, most: int) -> tuple[int, str]:
    """(size, sha256) of the contents; (-1, "") where they cannot be unpacked or read, or are longer than `most`."""
    digest, size = hashlib.sha256(), 0
    try:
        with open_plain(path) as stream:
            while chunk := stream.read(CHUNK):
                size += len(chunk)
                if size > most:
                    return -1, ""
                digest.update(chunk)
    except (*GZIP_ERRORS, OSError):
        return -1, ""
    return size, digest.hexdigest()


def _root(folder: Path | None) -> Path:
    if folder is not None:
        return folder
    if given := os.environ.get("TUTTI_DATA"):
        return Path(given).expanduser()
    return find_cache()
