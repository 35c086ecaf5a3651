from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tutti import machine
from tutti.machine import count_cores, find_cache, name_host


def test_at_least_one_core() -> None:
    assert 1 <= count_cores() <= (os.cpu_count() or 1)


def test_only_those_this_process_may_run_on() -> None:
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import tutti.machine as m\n"
    command = [sys.executable, "-c", f"{program}print(m.count_cores())"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "1", done.stderr


def test_a_host_is_a_kernel_and_its_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert name_host() == name_host()
    network = tmp_path / "net"
    network.symlink_to("net:[42]")
    monkeypatch.setattr(machine, "_NETWORK", network)
    assert name_host().endswith(" net:[42]")
    monkeypatch.setattr(machine, "_BOOT", tmp_path / "missing")
    monkeypatch.setattr("socket.gethostname", lambda: "athene")
    assert name_host() == "athene net:[42]"


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_cache() == tmp_path / "tutti"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_cache() == tmp_path / ".cache" / "tutti"


STEPS = """
import resource
from tutti.machine import keep_memory
{}
def step():
    return len([b"x" * 20_000_000 for _ in range(4)])
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_memory_that_is_kept_is_not_given_out_anew() -> None:
    """Five steps of 80 MB; counted in pages of 4 KiB or more."""

    def count_pages(call: str) -> int:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", STEPS.format(call)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)

    assert count_pages("keep_memory()") < 100 < count_pages("")
