"""Rows of a benchmark as `tutti bench` makes them, with figures that are easy to check."""

from __future__ import annotations

from typing import Any

from tutti.lab.bench.rows import Row

MIB = 2**20


def make_row(route: str = "ring", seconds: float = 1e-3, nbytes: int = MIB, **more: Any) -> Row:
    figures: dict[str, Any] = {
        "op": "all-reduce",
        "route": route,
        "workers": 4,
        "bytes": nbytes,
        "seconds": seconds,
        "algbw": nbytes / seconds,
        "busbw": 1.5 * nbytes / seconds,
        "correct": True,
        "dtype": "float32",
        "min": 0.9 * seconds,
        "p99": None,
        "quartiles": (0.98 * seconds, 1.02 * seconds),
        "samples": 50,
        "repeats": 1,
        "floor": 1e-4,
        "predicted": None,
        "spec": route,
        "network": "loopback",
        "wire": "tcp",
    }
    return Row(**{**figures, **more})
