"""The only place that knows what time it is; a test or a simulation hands in another clock."""

from __future__ import annotations

import time
from typing import Final

SILENCE: Final = 600.0  # seconds without a sign of life after which a worker counts as silent, by default


class Clock:
    def now(self) -> float:
        """Seconds from some moment on, always forward."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
