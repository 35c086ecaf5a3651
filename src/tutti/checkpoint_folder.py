"""The files of checkpoints: one folder for all workers, in it one folder per checkpoint.

    folder/step-00000400/worker-0.pt ... worker-3.pt    one file per worker
    folder/step-00000400/manifest.json                  whose they are, and the size and SHA-256 of each
    folder/.step-00000800.draft/                        a checkpoint that is being written
    folder/.step-00000200.old/                          a checkpoint that is being removed

A checkpoint gets its name by one rename, when all of its files are complete: what is called `step-...` is whole. A
second one of the same step is called `step-00000400-2`. Checkpoints are numbered in the order in which they were
written; the newest is the one with the highest number. What begins with a dot was left behind by a process that was
killed, and the next save removes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tutti.clock import Clock
from tutti.errors import UserError
from tutti.files import TEXT_LIMIT, name_problem, read_json

FORMAT = 1
MANIFEST = "manifest.json"
TOKEN = "token"
PATIENCE = 10.0  # seconds until a file that another machine has written must be visible in a shared folder
_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_FILE = re.compile(r"worker-\d+\.pt")
_LEFTOVER = re.compile(r"\.step-\d{8,}(?:-\d+)?\.(?:draft|old)")


@dataclass(frozen=True)
class File:
    """One worker's file, as the manifest describes it."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What worker 0 writes down about a checkpoint."""

    run: str  # the identity of the run; two runs never have the same
    number: int  # of checkpoints in this folder, in the order of writing
    spec: str
    workers: int
    steps: int
    files: list[File]
    tutti: str
    torch: str
    extras: dict[str, str] = field(default_factory=dict)  # name -> "object" or "value"
    format: int = FORMAT

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / MANIFEST
        try:
            data = read_json(path, TEXT_LIMIT)
            if data.get("format") != FORMAT:
                raise UserError(f"{folder} has checkpoint format {data.get('format')}; this tutti reads {FORMAT}")
            manifest = cls(**{**_known(cls, data), "files": [File(**_known(File, each)) for each in data["files"]]})
            manifest.check()
            return manifest
        except FileNotFoundError:
            raise UserError(f"{path} is missing: this checkpoint is not complete") from None
        except OSError as error:
            raise UserError(f"cannot read {path}: {name_problem(error)}") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path} is damaged") from None

    def check(self) -> None:
        """A TypeError or ValueError unless every field is what it says."""
        texts = (self.run, self.spec, self.tutti, self.torch, *self.extras, *self.extras.values())
        texts += tuple(text for file in self.files for text in (file.name, file.sha256))
        numbers = (self.number, self.workers, self.steps, *(file.bytes for file in self.files))
        if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
            raise TypeError
        if not all(_FILE.fullmatch(file.name) for file in self.files) or min(numbers) < 0:
            raise ValueError

    def write(self, folder: Path) -> None:
        with (folder / MANIFEST).open("w") as file:
            json.dump(asdict(self), file, indent=2)
            _flush(file)


def _known(cls: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    """Without what a later version has added."""
    names = {each.name for each in fields(cls)}
    return {key: value for key, value in data.items() if key in names}


def name_file(rank: int) -> str:
    return f"worker-{rank}.pt"


# --- what is there ---------------------------------------------------------------------------------------------------


def find_checkpoints(folder: Path) -> tuple[list[tuple[Path, Manifest]], list[tuple[Path, UserError]]]:
    """Those that can be read, newest first; and those whose manifest is missing or damaged, highest step first."""
    good: list[tuple[Path, Manifest]] = []
    bad: list[tuple[Path, UserError]] = []
    for path in _list(folder):
        try:
            good.append((path, Manifest.read(path)))
        except UserError as error:
            bad.append((path, error))
    good.sort(key=lambda entry: entry[1].number, reverse=True)
    bad.sort(key=lambda entry: read_steps(entry[0]), reverse=True)
    return good, bad


def choose(folder: Path) -> Path:
    """The newest checkpoint of the folder, or the folder itself where it is one."""
    if (folder / MANIFEST).exists() or _NAME.fullmatch(folder.resolve().name):
        if not folder.is_dir():
            raise UserError(f"there is no checkpoint {folder}{suggest_older(folder)}")
        return folder
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} to load a checkpoint from")
    good, bad = find_checkpoints(folder)
    if bad and (not good or read_steps(bad[0][0]) > good[0][1].steps):
        path, error = bad[0]
        raise UserError(f"{error}{suggest_older(path)}")
    if not good:
        raise UserError(f"there is no checkpoint in {folder}")
    return good[0][0]


def has_checkpoint(folder: Path) -> bool:
    return bool(_list(folder))


def read_steps(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else 0


def suggest_older(damaged: Path) -> str:
    """The end of a sentence about a damaged checkpoint: which complete one there is before it."""
    good, _ = find_checkpoints(damaged.resolve().parent)
    others = {path.name: manifest for path, manifest in good if path.name != damaged.name}
    numbers = {path.name: manifest.number for path, manifest in good}
    before = numbers.get(damaged.name)
    names = [name for name, manifest in others.items() if before is None or manifest.number < before]
    whole = [name for name in names if _is_complete(damaged.parent / name, others[name])]
    return f"; the one before it is complete: load {damaged.parent / whole[0]}" if whole else ""


def _is_complete(path: Path, manifest: Manifest) -> bool:
    return all((path / each.name).exists() and digest(path / each.name) == each.sha256 for each in manifest.files)


def _list(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is being written; worker 0 makes it and reports these three to the others."""

    name: str  # that it will have
    number: int
    token: str

    @property
    def folder(self) -> str:
        return f".{self.name}.draft"

    @classmethod
    def make(cls, folder: Path, steps: int, token: str) -> Draft:
        """Remove what killed processes have left, and make the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in list(folder.iterdir()):
            if _LEFTOVER.fullmatch(path.name):
                shutil.rmtree(path)
        good, _ = find_checkpoints(folder)
        draft = cls(_free_name(folder, steps), 1 + max((manifest.number for _, manifest in good), default=0), token)
        (folder / draft.folder).mkdir()
        try:
            (folder / draft.folder / TOKEN).write_text(token)
        except BaseException:
            draft.discard(folder)
            raise
        return draft

    def is_visible(self, folder: Path, clock: Clock) -> bool:
        """Whether this worker looks into the same folder as worker 0."""

        def look() -> bool:
            try:
                return (folder / self.folder / TOKEN).read_text() == self.token
            except OSError:
                return False

        return _await(look, clock)

    def publish(self, folder: Path, manifest: Manifest, clock: Clock) -> Path:
        """All files are written: see that they are all there, and give the checkpoint its name."""
        path = folder / self.folder
        for file in manifest.files:
            if not _await(lambda file=file: _size(path / file.name) == file.bytes, clock):  # type: ignore[misc]
                raise UserError(
                    f"{path / file.name} has {_size(path / file.name)} bytes where {file.bytes} were written; all "
                    "workers need one folder that they share"
                )
        (path / TOKEN).unlink()
        manifest.write(path)
        _flush_folder(path)
        path.rename(folder / self.name)
        _flush_folder(folder)
        return folder / self.name

    def discard(self, folder: Path) -> None:
        shutil.rmtree(folder / self.folder, ignore_errors=True)


def remove_older(folder: Path, run: str, keep: int) -> None:
    """Of this run's checkpoints the newest `keep` stay; those of other runs are left alone."""
    good, _ = find_checkpoints(folder)
    for path, _ in [entry for entry in good if entry[1].run == run][keep:]:
        old = path.rename(folder / f".{path.name}.old")
        shutil.rmtree(old)


def write_file(path: Path, content: dict[str, Any]) -> File:
    """`torch.save`, with the digest computed on the way and the file flushed to the disk."""
    with path.open("wb") as file:
        sink = _Sink(file)
        try:
            torch.save(content, sink)  # type: ignore[arg-type]  # it needs write and flush only
        except RuntimeError:
            if sink.error is not None:  # torch reports a full disk as a position that it did not expect
                raise sink.error from None
            raise
        _flush(file)
    return File(path.name, sink.count, sink.hash.hexdigest())


class _Sink:
    """A file that counts and digests what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.hash, self.count = file, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.hash.update(data)
        self.count += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _free_name(folder: Path, steps: int) -> str:
    name, again = f"step-{steps:08d}", 1
    while (folder / name).exists():
        again += 1
        name = f"step-{steps:08d}-{again}"
    return name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _await(condition: Callable[[], bool], clock: Clock) -> bool:
    """A shared folder may show what another machine has written a moment later."""
    limit = clock.now() + PATIENCE
    while not condition():
        if clock.now() >= limit:
            return False
        clock.sleep(0.1)
    return True


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """So that a rename is on the disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading ---------------------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_file(folder: Path, manifest: Manifest, rank: int) -> dict[str, Any]:
    """One worker's file, if it is what the manifest says it is."""
    wanted = next((file for file in manifest.files if file.name == name_file(rank)), None)
    path = folder / name_file(rank)
    if wanted is None:
        raise UserError(f"{folder / MANIFEST} names no file of worker {rank}")
    try:
        found = digest(path)
        if found != wanted.sha256:
            raise UserError(f"{path} {_describe_difference(found, path, manifest)}{suggest_older(folder)}")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path} is missing{suggest_older(folder)}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    same = content["rank"] == rank and content["run"] == manifest.run and content["steps"] == manifest.steps
    if not same:
        raise UserError(
            f"{path} holds the state of worker {content['rank']} at step {content['steps']} of run {content['run']}, "
            f"where {MANIFEST} says worker {rank}, step {manifest.steps}, run {manifest.run}{suggest_older(folder)}"
        )
    return dict(content)


def _describe_difference(found: str, path: Path, manifest: Manifest) -> str:
    owner = next((file.name for file in manifest.files if file.sha256 == found), None)
    if owner is not None:
        return f"holds the state that belongs into {owner}: files were exchanged"
    wanted = next(file.bytes for file in manifest.files if file.name == path.name)
    size = path.stat().st_size
    return (
        f"has {size} bytes instead of {wanted}"
        if size != wanted
        else f"is damaged: its checksum is not that in {MANIFEST}"
    )
