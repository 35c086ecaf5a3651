"""The tightest limit counts, in either version of cgroups and at any depth; no limit is no limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti.lab.host import list_interfaces, read_cpu_quota, read_memory

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


MEMORY = {"proc/meminfo": f"MemTotal: {8 * 2**20} kB\nMemAvailable: {6 * 2**20} kB\nHugePages_Total: 0"}
VERSION_2 = {"proc/self/cgroup": "0::/pods/one"}
VERSION_1 = {"proc/self/cgroup": "4:cpu,cpuacct:/one\n3:memory:/one\n2:pids:/one"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({**VERSION_2, "sys/fs/cgroup/pods/one/cpu.max": "max 100000"}, None),
        ({**VERSION_2, "sys/fs/cgroup/pods/one/cpu.max": "150000 100000"}, 1.5),
        (
            {**VERSION_2, "sys/fs/cgroup/pods/cpu.max": "50000 100000", "sys/fs/cgroup/pods/one/cpu.max": "max 100000"},
            0.5,
        ),
        ({**VERSION_2, "sys/fs/cgroup/cpu.max": "400000 100000"}, 4.0),  # seen from inside of a container
        (
            {
                **VERSION_1,
                "sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        (
            {**VERSION_1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_cpu_quota(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    assert read_cpu_quota(write(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        (MEMORY, (6 * GIB, 8 * GIB)),
        (
            {
                **MEMORY,
                **VERSION_2,
                "sys/fs/cgroup/pods/one/memory.max": str(2 * GIB),
                "sys/fs/cgroup/pods/one/memory.current": str(GIB),
            },
            (GIB, 2 * GIB),
        ),
        (
            {
                **MEMORY,
                **VERSION_1,
                "sys/fs/cgroup/memory/one/memory.limit_in_bytes": str(2**63 - 4096),
                "sys/fs/cgroup/memory/one/memory.usage_in_bytes": str(GIB),
            },
            (6 * GIB, 8 * GIB),
        ),
        ({}, None),
    ],
)
def test_memory(files: dict[str, str], memory: tuple[float, float] | None, tmp_path: Path) -> None:
    assert read_memory(write(tmp_path, files)) == memory


def test_this_machine() -> None:

    assert "127.0.0.1" in list_interfaces().values()
