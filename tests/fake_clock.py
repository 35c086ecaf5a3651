"""A clock for tests: time passes only while somebody sleeps."""

from __future__ import annotations


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0  # not zero, which would hide a start that is left out

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds
