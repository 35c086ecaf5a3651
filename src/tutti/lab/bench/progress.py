"""How far a benchmark is, on standard error: a bar in a terminal, a line per point elsewhere, nothing when quiet."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from tutti.lab.units import format_bytes


class BenchProgress:
    """A context manager; `start` for every number of workers, then the events of `measure`."""

    def __init__(self, points: int, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._points, self._begun, self._workers, self._quiet = points, 0, 0, quiet
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = not quiet and self._console.is_terminal and not self._console.is_dumb_terminal
        self._bar = Progress(*columns, console=self._console, transient=True, redirect_stdout=False) if bar else None
        self._task = self._bar.add_task("starting the workers", total=points) if self._bar else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, workers: int) -> None:
        self._workers = workers

    def event(self, event: dict[str, Any]) -> None:
        """A point has begun."""
        self._begun += 1
        what = f"{event['op']} {event['dtype']} on {self._workers} workers: {format_bytes(event['bytes'])}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what, completed=self._begun - 1)
        elif not self._quiet:
            self._console.print(Text(f"{self._begun}/{self._points} {what}"), soft_wrap=True)
