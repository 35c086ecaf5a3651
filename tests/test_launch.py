"""Workers start, tell, fail and end as promised, whoever starts them; test_worker_processes.py says what kills whom."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launch_targets import add_ranks, get_stuck, misbehave, raise_one
from launching import ignore, options, python

from tutti.comm.rendezvous import WireOptions
from tutti.errors import RunFailed, UserError
from tutti.launch import LaunchOptions, launch

BOTH = pytest.mark.parametrize("engine", ["threads", "processes"])


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


@pytest.mark.parametrize("when", ["mid-run", "end"])
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_thread_that_is_stuck_is_named_at_the_deadline(when: str, culprit: int) -> None:
    with pytest.raises(RunFailed, match=rf"^worker {culprit} (was silent for|is stopped or stuck)"):
        launch(get_stuck, (culprit, when), options(3, engine="threads", timeout=1.0), ignore)


@BOTH
def test_an_error_without_a_text_keeps_its_name(engine: str) -> None:
    with pytest.raises(RunFailed, match=r"^worker 1 raised Nameless: \(its text cannot be made: LookupError\)"):
        launch(raise_one, ("without a text",), options(2, engine=engine), ignore)


@BOTH
def test_a_permission_error_keeps_its_text(engine: str) -> None:
    with pytest.raises(RunFailed, match=r"^worker 1 raised PermissionError: only on Sundays"):
        launch(raise_one, ("not permitted",), options(2, engine=engine), ignore)


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
