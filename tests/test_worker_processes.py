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
from launch_targets import end_at_the_end, misbehave, raise_one, return_a_lock, stop_alone, use_all_memory
from launching import ignore, options, python, with_tests

from tutti.errors import RunFailed, UserError
from tutti.launch import launch


def own_workers() -> list[int]:
    """The workers that this process has launched and that are there: the children of its fork server."""
    servers = {pid for pid in all_processes() if parent_of(pid) == os.getpid() and "tutti.worker" in command_line(pid)}
    return [pid for pid in all_processes() if parent_of(pid) in servers and not is_over(pid)]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


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
    silence = rf"^worker {culprit} was silent for 2 s while worker \d waited for its "
    with pytest.raises(RunFailed, match=silence):
        launch(misbehave, ("stop", culprit), options(4, timeout=2.0), ignore)
    assert own_workers() == []


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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_result_counts_whatever_becomes_of_the_workers_afterwards(how: int) -> None:
    assert launch(end_at_the_end, (how,), options(3, timeout=3.0), ignore) == "the result"
    assert own_workers() == []


def test_a_single_worker_that_is_stopped_is_named() -> None:
    """There is nobody who waits for it but the launcher."""
    with pytest.raises(RunFailed, match=r"^worker 0 is stopped or stuck: it gave no sign of life for \d s$"):
        launch(stop_alone, (), options(1, timeout=1.0), ignore)


@pytest.mark.parametrize("wire", ["tcp", "torch"])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_right_worker_is_named_on_every_wire(wire: str, how: str) -> None:
    with pytest.raises(RunFailed, match=r"^worker 1 "):
        launch(misbehave, (how, 1), options(3, wire=wire, timeout=2.0), ignore)


def test_a_result_that_is_no_plain_data_is_refused() -> None:
    with pytest.raises(UserError, match=r"^worker 0's result must be plain data"):
        launch(return_a_lock, (), options(1), ignore)


def test_a_function_that_cannot_be_imported_is_refused() -> None:
    with pytest.raises(UserError, match=r"^workers that are processes need a function that can be imported"):
        launch(lambda comm, report: None, (), options(1), ignore)  # noqa: ARG005


def test_an_error_that_cannot_be_pickled_is_told() -> None:
    with pytest.raises(RunFailed, match=r"^worker 1 raised LookupError: <unlocked _thread.lock"):
        launch(raise_one, ("unpicklable",), options(2), ignore)


def test_a_script_without_its_guard_gets_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from launch_targets import *; from tutti.launch import *\nlaunch(add_ranks, (), LaunchOptions(2), print)\n"
    )
    done = python(str(script))
    assert "put the launch under `if __name__ == '__main__':`" in done.stderr


def test_too_little_memory_is_said_so() -> None:
    with pytest.raises(RunFailed, match=r"^worker 0 raised RuntimeError: .*memory") as caught:
        launch(use_all_memory, (), options(1), ignore)
    assert "ulimit" not in str(caught.value).partition("\n")[0]
    program = (
        "import resource; from launch_targets import *; from tutti.launch import *\n"
        "if __name__ == '__main__':\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))\n"
        "    launch(use_all_memory, (), LaunchOptions(1), print)"
    )
    assert "; `ulimit -v` allows each process 32.0 GiB of address space: raise it" in python("-c", program).stderr


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


def endless(folder: Path, **environment: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A parent with three workers that never end, and the workers' pids."""
    script = folder / "endless.py"
    script.write_text(ENDLESS)
    command = [sys.executable, str(script), str(folder)]
    parent = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=with_tests(environment),
        start_new_session=True,
    )
    assert wait_until(lambda: len(list(folder.glob("worker-*"))) == 3, 30)
    assert wait_until(lambda: all(path.read_text() for path in folder.glob("worker-*")))
    return parent, [int(path.read_text()) for path in folder.glob("worker-*")]


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    parent, workers = endless(tmp_path)
    parent.kill()
    parent.communicate(timeout=20)
    assert wait_until(lambda: all(map(is_over, workers)))


def test_a_stopped_worker_does_not_outlive_its_launcher(tmp_path: Path) -> None:
    parent, workers = endless(tmp_path)
    os.kill(workers[1], signal.SIGSTOP)
    parent.kill()
    parent.communicate(timeout=20)
    assert wait_until(lambda: all(map(is_over, workers)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_files_are_left(tmp_path: Path, number: int) -> None:
    """Not even by a launcher that is killed; the session of this test has a temporary folder of its own."""
    places = [tmp_path / "temporary", Path("/dev/shm")]
    places[0].mkdir()
    before = set(places[1].iterdir())
    parent, workers = endless(tmp_path, TMPDIR=str(places[0]))
    parent.send_signal(number)
    parent.communicate(timeout=20)
    assert wait_until(lambda: all(map(is_over, workers)))
    assert list(places[0].iterdir()) == []
    new = [file for file in set(places[1].iterdir()) - before if file.name.startswith("tutti")]
    assert wait_until(lambda: not any(file.exists() for file in new)), "those of other runs come and go"


@pytest.mark.parametrize("victim", ["tutti.fork_server"])
def test_a_fork_server_that_is_killed_ends_the_run(tmp_path: Path, victim: str) -> None:
    parent, workers = endless(tmp_path)
    (server,) = [pid for pid in all_processes() if victim in command_line(pid) and parent_of(pid) == parent.pid]
    os.kill(server, signal.SIGKILL)
    out, _ = parent.communicate(timeout=20)
    assert out.startswith("RunFailed")
    assert wait_until(lambda: all(map(is_over, workers)))


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_once_or_twice_ends_everything(tmp_path: Path, times: int) -> None:
    parent, workers = endless(tmp_path)
    for _ in range(times):
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: the whole group
        time.sleep(0.1)
    parent.communicate(timeout=20)
    assert wait_until(lambda: all(map(is_over, workers)))
