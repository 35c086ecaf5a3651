"""What this machine grants to a process: CPU quota, memory and network interfaces.

A container's limits are those of its cgroup and of every cgroup around it, in version 2 (one tree) or 1 (a tree per
controller); the tightest counts. `root` is where the file system begins, which a test may choose.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_UNLIMITED = 2**60  # version 1 writes a huge number of bytes where there is no limit


def read_cpu_quota(root: Path = _ROOT) -> float | None:
    """How many cores' worth of time the cgroups allow; None without a limit."""
    quotas = []
    for folder in _cgroups("cpu", root):
        limit, _, period = _read(folder / "cpu.max").partition(" ")
        limit, period = limit or _read(folder / "cpu.cfs_quota_us"), period or _read(folder / "cpu.cfs_period_us")
        if limit.isdecimal() and period.isdecimal():  # neither "max" nor "-1"
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def read_memory(root: Path = _ROOT) -> tuple[float, float] | None:
    """(available, total) bytes, of which the cgroups may allow less than the machine has; None where nobody says."""
    lines = (line.partition(":") for line in _read(root / "proc" / "meminfo").splitlines())
    sizes = {key: 1024.0 * int(value.split()[0]) for key, _, value in lines if value.split()}
    if not {"MemAvailable", "MemTotal"} <= sizes.keys():
        return None
    available, total = sizes["MemAvailable"], sizes["MemTotal"]
    for folder in _cgroups("memory", root):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal() and int(limit) < _UNLIMITED:
            total, available = min(total, int(limit)), min(available, int(limit) - int(used))
    return max(0.0, available), total


def list_interfaces() -> dict[str, str]:
    """Every interface with its IPv4 address; the empty text where it has none."""
    from tutti.comm.handshake import find_address
    from tutti.errors import UserError

    addresses = {}
    for _, name in socket.if_nameindex():
        try:
            addresses[name] = find_address(name, "")
        except UserError:
            addresses[name] = ""
    return addresses


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's cgroup and of those around it that hold the controller's files."""
    tree = root / "sys" / "fs" / "cgroup"
    for line in _read(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for base in dict.fromkeys((tree / controllers, tree / controller if controllers else tree)):
            inner = base / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
