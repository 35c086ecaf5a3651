"""Launches for tests: options that end soon, and programs of their own that find the tests' modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tutti.comm.rendezvous import WireOptions
from tutti.launch import LaunchOptions

_TESTS = Path(__file__).parent


def options(workers: int = 3, **changes: Any) -> LaunchOptions:
    timeout = changes.pop("timeout", 20.0)
    return LaunchOptions(workers, wire=WireOptions(changes.pop("wire", "tcp"), timeout=timeout), **changes)


def ignore(event: dict[str, Any]) -> None:
    pass


def python(*args: str, timeout: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=with_tests(environment))


def with_tests(environment: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), str(_TESTS.parent / "src")]), **environment}
