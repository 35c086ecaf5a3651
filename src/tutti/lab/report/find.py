"""Where the records are: the files of a folder that are records, of this version or of another, whole or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tutti.errors import UserError
from tutti.files import RECORD_LIMIT, read_json, read_text
from tutti.lab.record import FORMAT, Record


@dataclass(frozen=True)
class Found:
    """A file that is a record; one of another version or a damaged one has a problem and cannot be used."""

    path: Path
    record: Record | None
    problem: str = ""
    damaged: bool = False


def load_records(places: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """The records named, with those of every folder in its place, sorted by their file names; and what is wrong with
    those that cannot be used. A UserError where none can."""
    found = [each for place in places for each in (_look_into(place) if place.is_dir() else [_read(place)])]
    records = [each.record for each in found if each.record is not None]
    problems = [each.problem for each in found if each.record is None]
    if not records:
        raise UserError("; ".join(problems[:3]) + (f"; and {len(problems) - 3} others" if len(problems) > 3 else ""))
    return records, problems


def passed_over(places: Sequence[Path]) -> list[Path]:
    """The files of these folders that look like records and are none."""
    folders = [place for place in places if place.is_dir()]
    return [p for folder in folders for p in sorted(folder.glob("*.json")) if p.is_file() and _look_at(p) is None]


def find_records(folder: Path, pattern: str = "*.json") -> list[Found]:
    """Every record there is; other files are passed over."""
    found = [_look_at(path) for path in sorted(folder.glob(pattern)) if path.is_file()]
    return [each for each in found if each is not None]


def _look_into(folder: Path) -> list[Found]:
    found = find_records(folder)
    if not found:
        below = sorted({each.path.parent for each in find_records(folder, "**/*.json")})
        where = f"there are some in {below[-1]}" if below else "`tutti run` and `tutti compare` leave them in --out"
        raise UserError(f"there is no record of a run in {folder} itself; {where}")
    return found


def _read(path: Path) -> Found:
    try:
        return Found(path, Record.load(path))
    except UserError as error:
        return Found(path, None, str(error), damaged=True)


def _look_at(path: Path) -> Found | None:
    """None where the file is no record, whole or damaged."""
    found = _read(path)
    if found.record is not None:
        return found
    try:
        data = read_json(path)
    except OSError:
        return None
    except ValueError:
        return found if _begins_like_one(path) else None
    if not isinstance(data, dict) or not {"format", "measurements"} <= data.keys():
        return None
    return Found(path, None, found.problem, damaged=data["format"] == FORMAT)


def _begins_like_one(path: Path) -> bool:
    """As a record that was cut off."""
    try:
        return read_text(path, RECORD_LIMIT).startswith('{"format": 1, "name": ')
    except (OSError, ValueError):
        return False
