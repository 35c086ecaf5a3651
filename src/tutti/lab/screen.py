"""What is going on, on standard error: runs that are over stay as one line each, the one that runs has a bar.

Where standard error is no terminal there are two plain lines per run instead, and with `quiet` nothing at all. Events
come from another thread than the one that made the screen. What is shown is replaced whole, never changed in place, and
nothing is printed while the lock is held: rich has a lock of its own, under which it asks what to show.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tutti.clock import Clock
from tutti.lab.figures import read_figures
from tutti.lab.labels import shorten
from tutti.lab.record import Record
from tutti.lab.units import format_bytes, format_percent, format_seconds

_NAME_WIDTH = 22
_REFRESHES = 8  # per second


class Screen:
    """A context manager; `start`, any number of `event`s, and `done` or `failed` for every run.

    A run that is `done` without a `start` is one that was kept from earlier.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None, clock: Clock | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._quiet, self._clock = quiet, clock or Clock()
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self.view,
                console=self._console,
                refresh_per_second=_REFRESHES,
                transient=True,
                redirect_stdout=False,  # results are for whoever reads standard output
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            running = self._take()
            if running is not None and error is not None:
                self._print_end(running, f"stopped {running.where}", good=False)
        finally:
            if self._live is not None:
                self._live.stop()

    def start(self, name: str, spec: str, index: int, count: int) -> None:
        running = _Running(name, spec, index, count, self._clock)
        with self._lock:
            self._running = running
        if self._live is None:
            self._print(running.title)

    def event(self, event: dict[str, Any]) -> None:
        """What `train` reports; one that comes when its run is over is not heard."""
        with self._lock:
            if self._running is not None:
                self._running = self._running.hear(event)

    def done(self, record: Record) -> None:
        running = self._take()
        figures = read_figures([record], _NAME_WIDTH)[0]
        parts = [
            f"accuracy {format_percent(figures.accuracy)}",
            f"{format_seconds(figures.step)}/step",
            f"{format_bytes(figures.nbytes)}/step",
            format_seconds(record.wall_seconds) if running is not None else "kept",
        ]
        widths = (16, 13, 13, 7) if self._live is not None else (0, 0, 0, 0)
        line = "  ".join(f"{part:>{width}}" for part, width in zip(parts, widths, strict=True))
        self._print_end(running or _Running(record.name, record.spec, 0, 0, self._clock), line, good=True)

    def failed(self, message: str) -> None:
        running = self._take()
        if running is not None:
            self._print_end(running, f"failed: {message}", good=False)

    def note(self, message: str) -> None:
        """A line about a run, such as why it is made again."""
        self._print(Text(message))

    def view(self) -> RenderableType:
        """What is shown of the run under way."""
        with self._lock:
            return self._running or ""

    def _take(self) -> _Running | None:
        """The run that is over; its bar is gone from now on."""
        with self._lock:
            running, self._running = self._running, None
        if self._live is not None:
            self._live.refresh()
        return running

    def _print_end(self, running: _Running, end: str, good: bool) -> None:
        if self._live is None:
            self._print(Text(f"{running.number}{running.name}  {end}"))
            return
        mark = ("✓ ", "green") if good else ("✗ ", "bold red")
        name = f"{shorten(running.name, _NAME_WIDTH):<{_NAME_WIDTH}} "
        self._print(Text.assemble(mark, (name, "bold"), (end, "" if good else "red")))

    def _print(self, text: Text) -> None:
        if not self._quiet:
            self._console.print(text, soft_wrap=True)


@dataclass(frozen=True)
class _Running:
    """The run under way, and all that it said so far."""

    name: str
    spec: str
    index: int
    count: int
    clock: Clock
    begun: float | None = None  # when it was first heard of
    heard: float = 0.0  # when it was last heard of
    said: dict[str, Any] = field(default_factory=dict)

    def hear(self, event: dict[str, Any]) -> _Running:
        now = self.clock.now()
        said = {**self.said, **{key: value for key, value in event.items() if value is not None}}
        return replace(self, begun=now if self.begun is None else self.begun, heard=now, said=said)

    @property
    def number(self) -> str:
        return f"{self.index}/{self.count} " if self.count else ""

    @property
    def title(self) -> Text:
        title = Text.assemble(self.number, (self.name, "bold"), no_wrap=True, overflow="ellipsis")
        return title.append(f"  {self.spec}", "dim") if self.spec != self.name else title

    @property
    def where(self) -> str:
        return (
            f"at step {self.said['step']} of {self.said['steps']}" if "step" in self.said else "before its first step"
        )

    @property
    def left(self) -> str:
        """How long it will still take if all steps take as long as those so far, evaluations included."""
        step = self.said.get("step")
        if not step or self.begun is None:
            return ""
        end = self.heard + (self.heard - self.begun) / step * (self.said["steps"] - step)
        seconds = max(0, round(end - self.clock.now()))
        return f"{format_seconds(seconds) if seconds > 119 else f'{seconds} s'} left"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.title
        yield self._bar()
        yield Text(" · ".join(self._figures()), style="dim", overflow="ellipsis", no_wrap=True)

    def _bar(self) -> Table:
        row = Table.grid(padding=(0, 2, 0, 0), expand=True)
        row.add_column(ratio=1)
        row.add_column(justify="right", no_wrap=True)
        row.add_column(justify="right", no_wrap=True, min_width=10)
        if "steps" in self.said:
            step, steps = self.said.get("step", 0), self.said["steps"]
            row.add_row(
                ProgressBar(steps, step, complete_style="cyan", finished_style="green"),
                f"{step}/{steps} steps",
                self.left,
            )
        else:
            row.add_row(ProgressBar(pulse=True, animation_time=self.clock.now()), "starting the workers", "")
        return row

    def _figures(self) -> list[str]:
        forms = {
            "loss": lambda loss: f"loss {loss:.4f}",
            "accuracy": lambda accuracy: f"accuracy {format_percent(accuracy)}",
            "step_seconds": lambda seconds: f"{format_seconds(seconds)}/step",
            "bytes_per_step": lambda nbytes: f"{format_bytes(nbytes)}/step",
        }
        return [form(self.said[key]) for key, form in forms.items() if key in self.said]
