"""Workers start, tell, fail and end as promised, whoever starts them and whatever kills them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launch_targets import add_ranks, misbehave

from tutti.comm.rendezvous import WireOptions
from tutti.errors import RunFailed, UserError
from tutti.launch import LaunchOptions, launch

TESTS = Path(__file__).parent
BOTH = pytest.mark.parametrize("engine", ["threads", "processes"])


def options(workers: int = 3, **changes: Any) -> LaunchOptions:
    timeout = changes.pop("timeout", 20.0)
    return LaunchOptions(workers, wire=WireOptions(changes.pop("wire", "tcp"), timeout=timeout), **changes)


def ignore(event: dict[str, Any]) -> None:
    pass


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


@BOTH
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_worker_takes_part_and_worker_0_answers(engine: str, workers: int) -> None:
    events: list[dict[str, Any]] = []
    result = launch(add_ranks, ("hello",), options(workers, engine=engine), events.append)
    assert result["sum"] == sum(range(workers))
    assert result["size"] == workers
    assert result["wire"] == ("threads" if engine == "threads" else "tcp")
    assert events == [{"event": "done", "note": "hello"}]


def test_the_torch_wire() -> None:
    assert launch(add_ranks, (), options(2, wire="torch"), ignore)["wire"] == "torch"


@BOTH
def test_an_error_is_shown_first_whoever_else_complains(engine: str) -> None:
    with pytest.raises(RunFailed, match=r"^worker 2 raised LookupError: the dog ate it") as caught:
        launch(misbehave, ("raise", 2), options(engine=engine), ignore)
    assert any("misbehave" in note for note in caught.value.__notes__)


@BOTH
def test_a_users_mistake_stays_one(engine: str) -> None:
    with pytest.raises(UserError, match=r"^this cannot work; that would$"):
        launch(misbehave, ("user", 1), options(engine=engine), ignore)


def test_a_killed_worker_is_named() -> None:
    with pytest.raises(RunFailed, match=r"^worker 1 was killed by signal 9 \(SIGKILL\)$"):
        launch(misbehave, ("kill", 1), options(), ignore)


def test_a_worker_that_ends_without_a_word_is_named() -> None:
    with pytest.raises(RunFailed, match=r"^worker 1 ended with exit code 7"):
        launch(misbehave, ("exit", 1), options(), ignore)


@pytest.mark.parametrize("culprit", [1, 3])
def test_a_silent_worker_ends_the_run_within_its_deadline_and_is_killed(culprit: int) -> None:
    before = all_processes()
    with pytest.raises(RunFailed, match=rf"^worker {culprit} did not answer worker \d within 2 s$"):
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


def python(*args: str, timeout: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=with_tests(environment))


def with_tests(environment: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]), **environment}


# --- ends -------------------------------------------------------------------------------------------------------------

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


THREADS = """
import sys
import torch
from tutti.launch import LaunchOptions, launch

def compute(comm, report):
    while True:
        torch.randn(200, 200) @ torch.randn(200, 200)
        comm.barrier()
        report({"event": "step"})

def begin(event):
    print("begun", flush=True)

try:
    launch(compute, (), LaunchOptions(3, engine="threads"), begin)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_workers_that_are_threads() -> None:
    """Before Python does: a thread inside torch would end the process with an abort."""
    parent = subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    parent.send_signal(signal.SIGINT)
    _, error = parent.communicate(timeout=20)
    assert (parent.returncode, error) == (130, b"")


# --- other launchers --------------------------------------------------------------------------------------------------

RANK = """
from launch_targets import add_ranks
from tutti.launch import LaunchOptions, launch, workers_already_started
if __name__ == "__main__":
    result = launch(add_ranks, (), LaunchOptions(workers_already_started()), lambda e: None)
    if result is not None:
        print("result", result)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    done = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    assert done.returncode == 0, done.stderr
    results = [line for line in done.stdout.splitlines() if line.startswith("result {")]
    assert len(results) == 1
    assert "'sum': 1.0" in results[0]


def test_one_worker_alone_between_runs_of_all_under_torchrun(tmp_path: Path) -> None:
    """The command itself under a launcher: `single` is rank 0's affair, and the others are there again after it."""
    command = ["-m", "tutti", "compare", "ring", "single", "ddp", "--steps", "3", "--out", str(tmp_path), "--json", "-"]
    done = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command)
    assert done.returncode == 0, done.stderr
    assert [row["workers"] for row in json.loads(done.stdout)] == [2, 1, 2]


def test_under_slurms_environment(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    slurm = {"SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ThreadPoolExecutor() as pool:
        ranks = [pool.submit(python, str(script), **slurm, SLURM_PROCID=str(rank)) for rank in (0, 1)]
        outputs = [rank.result() for rank in ranks]
    assert all(done.returncode == 0 for done in outputs), outputs
    assert "'sum': 1.0" in outputs[0].stdout


NODE = """
import sys
from launch_targets import add_ranks
from tutti.launch import LaunchOptions, launch
if __name__ == "__main__":
    place = LaunchOptions(4, nodes=2, node_rank=int(sys.argv[1]), master=sys.argv[2])
    print("result", launch(add_ranks, (), place, lambda e: None))
"""


def test_two_nodes_by_hand(tmp_path: Path) -> None:
    script = tmp_path / "node.py"
    script.write_text(NODE)
    master = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor() as pool:
        nodes = [pool.submit(python, str(script), str(rank), master) for rank in (0, 1)]
        outputs = [node.result() for node in nodes]
    assert all(done.returncode == 0 for done in outputs), outputs
    assert "'sum': 6.0, 'size': 4" in outputs[0].stdout


def test_a_masters_port_in_use_is_a_users_mistake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = LaunchOptions(2, nodes=2, node_rank=0, master=f"127.0.0.1:{port}", wire=WireOptions(timeout=3))
        with pytest.raises(UserError, match="in use"):
            launch(add_ranks, (), place, ignore)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (LaunchOptions(0), "at least 1"),
        (LaunchOptions(5, nodes=2, master="a:1"), "do not divide"),
        (LaunchOptions(4, nodes=2, node_rank=2, master="a:1"), "below --nodes"),
        (LaunchOptions(4, nodes=2), "needs --master"),
        (LaunchOptions(4, nodes=2, master="a:1", engine="threads"), "needs --engine processes"),
    ],
)
def test_places_that_cannot_be(place: LaunchOptions, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        launch(add_ranks, (), place, ignore)
