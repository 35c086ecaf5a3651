"""Workers that are processes: who ended is named, and nothing is left, whatever kills whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launch_targets import misbehave
from launching import ignore, options, python, with_tests

from tutti.errors import RunFailed
from tutti.launch import launch


def worker_processes(since: set[int]) -> set[int]:
    """The processes of this user that were not there before and still run (zombies do not)."""
    return {pid for pid in all_processes() - since if not is_over(pid)}


def all_processes() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Any, seconds: float = 15.0) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.05)
    return False


# --- a worker ends ----------------------------------------------------------------------------------------------


def test_a_killed_worker_is_named() -> None:
    """By its end, or on a busy machine by those who noticed first."""
    with pytest.raises(RunFailed, match=r"^worker 1 (was killed by signal 9 \(SIGKILL\)$|died: its connection to )"):
        launch(misbehave, ("kill", 1), options(), ignore)


def test_a_worker_that_ends_without_a_word_is_named() -> None:
    with pytest.raises(RunFailed, match=r"^worker 1 ended with exit code 7"):
        launch(misbehave, ("exit", 1), options(), ignore)


@pytest.mark.parametrize("culprit", [1, 3])
def test_a_silent_worker_ends_the_run_within_its_deadline_and_is_killed(culprit: int) -> None:
    before = all_processes()
    silence = rf"^worker {culprit} was silent for 2 s while worker \d waited for its "
    with pytest.raises(RunFailed, match=silence):
        launch(misbehave, ("stop", culprit), options(4, timeout=2.0), ignore)
    stopped = [pid for pid in worker_processes(before) if "launch_targets" in command_line(pid)]
    assert not stopped


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_two_runs_at_once_do_not_collide() -> None:
    """Two launches from two parents at the same time."""
    program = "from launch_targets import *; from tutti.launch import *\n" + (
        "if __name__ == '__main__': print(launch(add_ranks, (), LaunchOptions(3), lambda e: None)['sum'])"
    )
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(python, "-c", program) for _ in range(2)]
        assert [run.result().stdout.strip() for run in runs] == ["3.0", "3.0"]


# --- the parent ends -------------------------------------------------------------------------------------------------

ENDLESS = """
import sys
from launch_targets import leave_pids
from tutti.launch import LaunchOptions, launch
if __name__ == "__main__":
    try:
        launch(leave_pids, (sys.argv[1],), LaunchOptions(3), lambda e: None)
    except BaseException as error:
        print(type(error).__name__)
"""


def endless(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A parent with three workers that never end, and the workers' pids."""
    script = folder / "endless.py"
    script.write_text(ENDLESS)
    command = [sys.executable, str(script), str(folder)]
    parent = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=with_tests({}), start_new_session=True
    )
    assert wait_until(lambda: len(list(folder.glob("worker-*"))) == 3, 30)
    assert wait_until(lambda: all(path.read_text() for path in folder.glob("worker-*")))
    return parent, [int(path.read_text()) for path in folder.glob("worker-*")]


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    parent, workers = endless(tmp_path)
    parent.kill()
    parent.communicate(timeout=20)
    assert wait_until(lambda: all(map(is_over, workers)))


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_once_or_twice_ends_everything(tmp_path: Path, times: int) -> None:
    parent, workers = endless(tmp_path)
    for _ in range(times):
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: the whole group
        time.sleep(0.1)
    parent.communicate(timeout=20)
    assert wait_until(lambda: all(map(is_over, workers)))
