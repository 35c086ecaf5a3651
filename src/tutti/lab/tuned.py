"""The values that sweeps found best, kept for later: what `--tuned` reads.

One file, `tuned.json` in the cache, or what $TUTTI_TUNED names. An entry's key is the work and the algorithm: task,
model, workers, global batch, partition, spec, optimizer and momentum. Its value is what of a plan was searched for
beside those (always the learning rate), how good that was, when, and after how much training: a later sweep replaces
it, unless that trained for a shorter time, or as long and found less.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Required, TypedDict

from tutti.algorithms.base import Algorithm
from tutti.errors import UserError
from tutti.files import name_problem, read_json
from tutti.lab.export import write_whole
from tutti.lab.schema import Count, Number, find_fault
from tutti.lab.units import format_percent
from tutti.machine import find_cache
from tutti.partitions.base import Partition
from tutti.spec import parse
from tutti.train import Plan, find_usual_model

FORMAT = 1
_OF_PLAN = ("task", "model", "global_batch", "partition", "optimizer", "momentum")


def find_file() -> Path:
    return Path(os.environ.get("TUTTI_TUNED") or find_cache() / "tuned.json")


def make_key(spec: str, plan: Plan, workers: int) -> dict[str, Any]:
    """What a learning rate is best for; the same for a spec in other words."""
    work = {name: getattr(plan, name) for name in _OF_PLAN}
    canonical = {"partition": str(parse(plan.partition, Partition)), "spec": str(parse(spec, Algorithm))}
    return {**work, **canonical, "workers": workers}


@dataclass(frozen=True)
class Tuned:
    """An entry of the file."""

    key: dict[str, Any]
    plan: dict[str, Any]  # the fields of a plan that are best, by name
    accuracy: float
    when: str  # date and time, UTC
    samples: int | None  # of the training set; None: all
    seeds: int
    trained: int = 0  # samples that each run went through; 0: not known

    @property
    def worth(self) -> tuple[int, int, float]:
        """What a new one with the same key must not fall below."""
        return self.trained, self.seeds, self.accuracy

    def say(self) -> str:
        """Where it comes from."""
        values = ", ".join(f"{name} {_write(value)}" for name, value in self.plan.items())
        length = f" after {self.trained:,} samples" if self.trained else ""
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{values} ({format_percent(self.accuracy)}{length}, {seeds}, {self.when[:10]})"


class _Values(TypedDict, total=False):
    """Of a plan."""

    lr: Number
    momentum: Number
    optimizer: str
    schedule: str


class _Entry(TypedDict, total=False):
    """As Tuned has it."""

    key: Required[dict[str, Any]]
    plan: Required[_Values]
    accuracy: Required[Number]
    when: Required[str]
    samples: Required[Count | None]
    seeds: Required[Count]
    trained: Count


class _File(TypedDict):
    format: Required[int]
    entries: Required[list[_Entry]]


def read_tuned(path: Path) -> list[Tuned]:
    if not path.exists():
        return []
    try:
        data = read_json(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {name_problem(error)}") from None
    except ValueError:
        raise UserError(f"{path} is no file of tuned values; remove it and sweep again") from None
    if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
        raise UserError(f"{path} was written by another version of tutti; remove it and sweep again")
    fault = find_fault(data, _File)
    if fault:
        raise UserError(f"{path} is no file of tuned values: {fault}; remove it and sweep again")
    known = {each.name for each in fields(Tuned)}
    return [Tuned(**{key: value for key, value in entry.items() if key in known}) for entry in data["entries"]]


def store_tuned(entries: Sequence[Tuned], path: Path) -> list[Tuned]:
    """In the place of those with the same keys, unless those are worth more; returns these."""
    before = read_tuned(path)
    better = [old for old in before if any(old.key == new.key and old.worth > new.worth for new in entries)]
    new = [entry for entry in entries if all(entry.key != old.key for old in better)]
    kept = [old for old in before if all(old.key != entry.key for entry in new)]
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(entry) for entry in (*kept, *new)]
    write_whole(json.dumps({"format": FORMAT, "entries": rows}, indent=1) + "\n", path)
    return better


def find_tuned(name: str, spec: str, plan: Plan, workers: int) -> Tuned:
    """What is best for this work, as far as known; `name` is what the user calls the spec."""
    key = make_key(spec, plan, workers)
    found = next((entry for entry in read_tuned(find_file()) if entry.key == key), None)
    if found is None:
        raise UserError(f"there are no tuned values for {name} here; make them with: {_make_command(name, key)}")
    return found


def _make_command(name: str, key: dict[str, Any]) -> str:
    """The sweep that would make the entry, with what differs from its defaults."""
    words = ["--algorithms", name, "--task", key["task"], "--workers", key["workers"], "--partition", key["partition"]]
    batch, rest = divmod(key["global_batch"], key["workers"])
    words += ["--vary", f"global-batch={key['global_batch']}"] if rest else ["--batch", batch]
    usual = {**asdict(Plan()), "model": find_usual_model(key["task"])}
    for field in ("model", "optimizer", "momentum"):
        if key[field] != usual[field]:
            words += ["--vary", f"{field}={_write(key[field])}"]
    return shlex.join(["tutti", "study", "sweep", *map(str, words)])


def _write(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
