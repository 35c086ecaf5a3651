"""How a run with checkpoints begins (`tutti run --checkpoint-every`, `--continue`); what it keeps is in started.py."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from tutti.checkpoint_folder import choose, has_checkpoint
from tutti.errors import UserError
from tutti.lab.run import Entry
from tutti.lab.started import Started, find_folder, keep_options
from tutti.resuming import Keeping
from tutti.train import Plan


def announce(
    options: dict[str, Any], entry: Entry, plan: Plan, workers: int, out: Path, started: Started | None
) -> Started:
    """What --continue has to know, on disk before the first worker starts; or from where a run that was started goes
    on."""
    if started is not None:
        print(f"tutti: {describe_start(out)}", file=sys.stderr)
        return started
    refuse_earlier(out)
    known = keep_options({**options, "workers": workers, "out": out.resolve()})
    started = Started(entry.name, str(entry.algorithm), dataclasses.asdict(entry.adapt(plan)), known)
    started.write(out)
    return started


def refuse_earlier(out: Path) -> None:
    """A new run must not mix with what another one has left."""
    folder = find_folder(out)
    if has_checkpoint(folder):
        raise UserError(
            f"{folder} holds checkpoints of an earlier run; go on with tutti run --continue {out}, choose another "
            "--out, or remove that folder"
        )


def keep_in(out: Path, every: int, keep: int, goes_on: bool) -> Keeping:
    return Keeping(str(find_folder(out).resolve()), every, keep, goes_on)


def describe_start(out: Path) -> str:
    """From where a run goes on; a damaged checkpoint is named before any worker starts."""
    folder = find_folder(out)
    if not has_checkpoint(folder):
        return f"nothing was saved in {folder} yet: the run starts from the beginning"
    return f"the run goes on from {choose(folder)}"
