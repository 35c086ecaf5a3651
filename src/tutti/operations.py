"""The sequence of collective operations that this worker's program has called: all workers must call the same one.

Every public operation of a run that sends something notes its name here. A rolling digest stands for the whole
sequence; the names of the last ones are kept, so that the first difference between two workers can be named.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from tutti.clock import Clock

_KEPT = 100  # operations whose names are known
_CALLS = {"backward": "backward", "step": "run.step()", "parameters": "taking in changed parameters"}


class Entry(NamedTuple):
    """One operation: its number from 1, its name, the steps completed before it, the digest up to and with it."""

    number: int
    name: str
    steps: int
    digest: int

    def __str__(self) -> str:
        when = f"step {self.steps + 1}" if self.name in _CALLS else f"after step {self.steps}"
        call = _CALLS.get(self.name, f"{self.name}()")
        return f"{call} (operation {self.number}, {when})"


class Report(NamedTuple):
    """What one worker tells of itself: its last operations, how many are complete, and why it left, if it has."""

    rank: int
    completed: int
    entries: tuple[Entry, ...]
    gone: str = ""
    kind: str = ""  # of the error where that is a consequence: it names the cause, at this worker or another

    def to_bytes(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        return cls.from_list(json.loads(data))

    @classmethod
    def from_list(cls, data: list[Any]) -> Report:
        """What was a report before it was JSON."""
        rank, completed, entries, gone, kind = data
        return cls(rank, completed, tuple(Entry(*entry) for entry in entries), gone, kind)

    def at(self, number: int) -> Entry:
        return self.entries[number - self.entries[0].number]

    @property
    def unfinished(self) -> Entry | None:
        """The operation that it is in."""
        last = self.entries[-1] if self.entries else None
        return last if last is not None and last.number > self.completed else None


class Operations:
    """The log of one run; noting an operation costs a few assignments."""

    def __init__(self) -> None:
        self._now = Clock().now  # real time, whatever the wire's is
        self.completed = 0
        self.entered = 0.0  # when the current operation began
        self.entries: deque[Entry] = deque(maxlen=_KEPT)
        self._digest = 0
        self._depth = 0
        self.on_error: Callable[[BaseException], BaseException] = lambda error: error  # may name the cause

    def during(self, name: str, steps: int) -> _During:
        """`with operations.during("mean", steps): ...`, after so many steps; one within another does not count."""
        return _During(self, name, steps)

    @property
    def last(self) -> Entry:
        """The last one that has begun."""
        return self.entries[-1] if self.entries else Entry(0, "", 0, 0)

    @property
    def inside(self) -> bool:
        return self._depth > 0

    def report(self, rank: int) -> Report:
        return Report(rank, self.completed, tuple(self.entries.copy()))  # a copy, since another thread may ask

    def enter(self, name: str, steps: int) -> None:
        if self._depth == 0:  # the depth comes last, since another thread reads it
            self._digest = zlib.crc32(name.encode(), self._digest)
            self.entered = self._now()
            self.entries.append(Entry(self.last.number + 1, name, steps, self._digest))
        self._depth += 1

    def leave(self, error: BaseException | None) -> None:
        self._depth -= 1
        if self._depth == 0 and error is None:
            self.completed = self.last.number


class _During:
    __slots__ = ("_name", "_operations", "_steps")

    def __init__(self, operations: Operations, name: str, steps: int) -> None:
        self._operations, self._name, self._steps = operations, name, steps

    def __enter__(self) -> None:
        self._operations.enter(self._name, self._steps)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._operations.leave(error)
        if error is not None and not self._operations.inside:
            cause = self._operations.on_error(error)
            if cause is not error:
                raise cause from None


def find_difference(one: Report, other: Report) -> tuple[Entry | None, Entry | None] | None:
    """The first operation with the same number that is not the same for both; None if there is none.

    (None, None) if they differ before what is still known of both. Only what both have begun is compared: workers may
    be any number of operations apart.
    """
    if not one.entries or not other.entries:
        return None
    first = max(one.entries[0].number, other.entries[0].number)
    last = min(one.entries[-1].number, other.entries[-1].number)
    if last < first or one.at(last).digest == other.at(last).digest:
        return None
    for number in range(first, last + 1):
        mine, its = one.at(number), other.at(number)
        if mine.name != its.name:
            return mine, its
        if mine.digest != its.digest:
            break
    return None, None


def describe_difference(one: Report, other: Report) -> str:
    """One sentence that names both sides; empty where what is known of both is the same."""
    found: Any = find_difference(one, other)
    if found is None:
        return ""
    rule = "all workers must call the same operations in the same order"
    mine, its = found
    if mine is None:
        first = min(one.entries[0].number, other.entries[0].number)
        return f"workers {one.rank} and {other.rank} called different operations before operation {first}: {rule}"
    return f"worker {one.rank} {_verb(one, mine)} {mine} where worker {other.rank} {_verb(other, its)} {its}: {rule}"


def _verb(report: Report, entry: Entry) -> str:
    return "waits in" if entry == report.unfinished else "called"
