"""What the reference loop saves after every N steps, and goes on from.

Beside the state of the run (checkpoint.py): the schedule, all that was measured so far, what the meter has counted and,
on a wire that loses messages, which message comes next. So the run that goes on is the run that was stopped: the same
weights, losses and accuracies, and one record of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutti.checkpoint_folder import has_checkpoint
from tutti.comm.base import Comm
from tutti.comm.lossy import Lossy
from tutti.engine import Run
from tutti.errors import NotWritten
from tutti.stopwatch import Stopwatch


@dataclass(frozen=True)
class Keeping:
    """Checkpoints of a run: where, how often and how many; and whether it goes on from one that is there."""

    folder: str
    every: int  # steps
    keep: int | None = 1
    goes_on: bool = False


class Saver:
    """One worker's part in them; without a `Keeping` it does nothing."""

    def __init__(self, keeping: Keeping | None, run: Run, watch: Stopwatch, comm: Comm, **objects: Any) -> None:
        self._keeping, self._run, self._watch = keeping, run, watch
        lossy = {"losses": comm} if isinstance(comm, Lossy) else {}
        self._objects = {**objects, "stopwatch": watch, "meter": run.meter, **lossy}

    def go_on(self) -> int:
        """How many steps are done: those of the newest checkpoint, or none."""
        if self._keeping is None or not self._keeping.goes_on or not self._is_there(Path(self._keeping.folder)):
            return 0
        self._run.load(self._keeping.folder, **self._objects)
        self._watch.resume()
        return self._run.replica.steps

    def save_if_due(self) -> None:
        """Behind a step; the last one is followed by the record. Where the disk is full the run goes on without."""
        keeping, steps = self._keeping, self._run.replica.steps
        if keeping is not None and steps % keeping.every == 0 and steps < self._watch.total:
            self._watch.pause(self._try_to_save)

    def _try_to_save(self) -> None:
        """All workers hear of an error on one of them."""
        try:
            self._save()
        except NotWritten as error:
            self._watch.complain(f"{error}; the run went on without this checkpoint")

    def _is_there(self, folder: Path) -> bool:
        """What worker 0 sees, for all."""
        return self._run.any(self._run.rank == 0 and has_checkpoint(folder))

    @property
    def _save(self) -> Callable[[], Any]:
        assert self._keeping is not None
        keeping = self._keeping
        return lambda: self._run.save(keeping.folder, keeping.keep, **self._objects)
