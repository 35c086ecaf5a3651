"""What this machine gives to this process."""

from __future__ import annotations

import os


def count_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
