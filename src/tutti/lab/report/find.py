"""Where the records are: the files of a folder that are records, of this version or of another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tutti.errors import UserError
from tutti.lab.record import Record


@dataclass(frozen=True)
class Found:
    """A file that is a record; one of another version is told of, but cannot be read."""

    path: Path
    record: Record | None
    problem: str = ""


def load_records(places: Sequence[Path]) -> list[Record]:
    """The records named, with those of every folder in its place, sorted by their file names."""
    return [record for place in places for record in (_load_folder(place) if place.is_dir() else [Record.load(place)])]


def passed_over(places: Sequence[Path]) -> list[Path]:
    """The files of these folders that look like records and are none."""
    folders = [place for place in places if place.is_dir()]
    return [p for folder in folders for p in sorted(folder.glob("*.json")) if p.is_file() and _look_at(p) is None]


def find_records(folder: Path, pattern: str = "*.json") -> list[Found]:
    """Every record there is; other files are passed over."""
    found = [_look_at(path) for path in sorted(folder.glob(pattern)) if path.is_file()]
    return [each for each in found if each is not None]


def _load_folder(folder: Path) -> list[Record]:
    found = find_records(folder)
    if not found:
        below = sorted({each.path.parent for each in find_records(folder, "**/*.json")})
        where = f"there are some in {below[-1]}" if below else "`tutti run` and `tutti compare` leave them in --out"
        raise UserError(f"there is no record of a run in {folder} itself; {where}")
    return [each.record or Record.load(each.path) for each in found]


def _look_at(path: Path) -> Found | None:
    try:
        return Found(path, Record.load(path))
    except UserError as error:
        return Found(path, None, str(error)) if _is_of_some_version(path) else None


def _is_of_some_version(path: Path) -> bool:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and {"format", "measurements"} <= data.keys()
