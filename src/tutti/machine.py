"""What this machine is, and what it gives to this process."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_BOOT, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")


def count_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def name_host() -> str:
    """The same for those that share a kernel and its network, and for nobody else."""
    kernel = _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()
    return f"{kernel} {_NETWORK.readlink() if _NETWORK.is_symlink() else ''}"


def find_cache() -> Path:
    """The folder for what can be made or fetched again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tutti"
