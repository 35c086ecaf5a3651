"""What this machine is, and what it gives to this process."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
from contextlib import suppress
from pathlib import Path

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # glibc's numbers, for mallopt
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, for prctl
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


def keep_memory() -> None:
    """What this process frees is kept for what it needs next, instead of going back to the system after every step.
    Nothing happens with another C library than glibc."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 2**25)  # the most that glibc takes
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 2**26)


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when `parent`, which started it, ends in whatever way; also while it is stopped."""
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def say_memory_limit() -> str:
    """The end of a sentence about something that failed for want of memory; empty where this process may have all."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"; `ulimit -v` allows each process {limit / 2**30:.1f} GiB of address space: raise it"
