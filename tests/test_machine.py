from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from launch_targets import count_new_pages

from tutti import machine
from tutti.launch import LaunchOptions, launch
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_workers_keep_the_memory_they_free() -> None:
    alone = "from launch_targets import count_new_pages as count; print(count())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True, env=environment)
    assert launch(count_new_pages, (), LaunchOptions(1), lambda _: None) < 100 < int(done.stdout)
