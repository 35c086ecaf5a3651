"""CPU quotas by cgroup: so many cores' worth of time for one host, whatever runs beside it.

Version 1 has a tree per controller, version 2 one tree in which a group may hold either processes or groups with the
controller; so the quotas of a run are made beside this process's own group, in the nearest group around it that hands
the CPU controller on. Their names say whose they are (process, its start, a number): a crashed run's can be told from
a living one's, and `sweep` removes them.
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from tutti.clock import Clock
from tutti.errors import UserError

_ROOT = Path("/")
_PERIOD = 20_000  # microseconds: short against a training step, long against the scheduler's slices
_LEAST_LIMIT = 1_000  # microseconds in a period: the kernel takes no less, so for a small share the period is longer
_NAME = re.compile(r"tutti-(\d+)-(\d+)-.+")
_PATIENCE = 2.0  # seconds until processes that were killed have left their group


class Quota:
    """One group with a limit; `join` puts the calling process into it, `close` removes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, label: str, cpus: float, root: Path = _ROOT) -> Quota:
        """A new group under the first place that takes one."""
        name = f"tutti-{os.getpid()}-{started(os.getpid(), root)}-{label}"
        reason = "there is no cgroup with a CPU controller"
        for place in places(root):
            try:
                (place / name).mkdir()
            except OSError as error:
                reason = f"{place}: {error.strerror}"
                continue
            quota = cls(place / name)
            try:
                quota._limit(cpus)
            except OSError as error:
                quota.close()
                reason = f"{place}: {error.strerror}"
                continue
            return quota
        raise UserError(f"cpu={cpus:g} needs a cgroup that may be written ({reason}); run as root, or leave cpu out")

    def _limit(self, cpus: float) -> None:
        period = max(_PERIOD, math.ceil(_LEAST_LIMIT / cpus))
        limit = max(_LEAST_LIMIT, round(cpus * period))
        if (self.folder / "cpu.cfs_quota_us").exists():
            (self.folder / "cpu.cfs_period_us").write_text(str(period))
            (self.folder / "cpu.cfs_quota_us").write_text(str(limit))
        else:
            with (self.folder / "cpu.max").open("r+") as file:  # must be there: the controller makes it
                file.write(f"{limit} {period}")

    def close(self) -> None:
        _remove(self.folder)


def join(folder: Path) -> None:
    """Put this process with all its threads under the limit."""
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def left_behind(root: Path = _ROOT) -> list[Path]:
    """The groups whose makers are gone."""
    found = []
    for place in places(root):
        for folder in sorted(place.iterdir()):
            match = _NAME.fullmatch(folder.name)
            if match and folder.is_dir() and started(int(match[1]), root) != match[2]:
                found.append(folder)
    return found


def sweep(root: Path = _ROOT) -> list[Path]:
    """Remove what crashed runs left, with the processes that are still in it; what could be removed is returned."""
    return [folder for folder in left_behind(root) if _remove(folder)]


def started(process: int, root: Path = _ROOT) -> str:
    """When a process began, in the kernel's ticks; the empty text where there is none, or only its remains."""
    state, *figures = _read(root / "proc" / str(process) / "stat").rpartition(")")[2].split() or ["X"]
    return "" if state in "XZ" else figures[18]


def places(root: Path = _ROOT) -> Iterator[Path]:
    """Where groups with a CPU limit may be made, the nearest to this process first."""
    for kind, mount in _mounts(root):
        own = _own_group(kind, root)
        inner = mount / own.lstrip("/")
        around = [inner, *inner.parents] if inner.is_dir() else [mount]
        for folder in around:
            if not folder.is_relative_to(mount):
                break
            if kind == "cgroup" or _hands_on(folder):
                yield folder


def _mounts(root: Path) -> Iterator[tuple[str, Path]]:
    """(kind, place) of every mounted cgroup tree that has the CPU controller."""
    for line in _read(root / "proc" / "self" / "mounts").splitlines():
        _, place, kind, options, *_ = line.split()
        if kind not in ("cgroup", "cgroup2"):
            continue
        mount = root / place.lstrip("/")
        controllers = options.split(",") if kind == "cgroup" else _read(mount / "cgroup.controllers").split()
        if "cpu" in controllers:
            yield kind, mount


def _own_group(kind: str, root: Path) -> str:
    for line in _read(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if (kind == "cgroup2" and not controllers) or (kind == "cgroup" and "cpu" in controllers.split(",")):
            return path
    return "/"


def _hands_on(folder: Path) -> bool:
    """Whether groups made in this one have the CPU controller."""
    return "cpu" in _read(folder / "cgroup.subtree_control").split()


def _remove(folder: Path) -> bool:
    """End what still runs in the group, and the group; the kernel takes a moment to let go of the dead."""
    clock = Clock()
    give_up = clock.now() + _PATIENCE
    while folder.exists():
        for process in _read(folder / "cgroup.procs").split():
            if int(process) not in (0, os.getpid()):  # 0 stands for one that cannot be seen from here
                _kill(int(process))
        try:
            folder.rmdir()
        except OSError:
            if clock.now() > give_up:
                return False
            clock.sleep(0.02)
    return True


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
