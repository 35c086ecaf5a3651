"""What a run listens on, as the kernel says: never on all interfaces."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from hosts_here import needs_hosts
from launching import with_tests

LISTENING = "0A"
EVERYWHERE = ("00000000", "0" * 32)
WORK = ["--task", "synthetic(shape=1x32x32, samples=64)", "--model", "lenet-5", "--steps", "6", "--workers", "2"]


def run_of(parents: set[int]) -> set[int]:
    """These processes and all that descend from them."""
    found = set(parents)
    for entry in sorted((e for e in Path("/proc").iterdir() if e.name.isdecimal()), key=lambda e: int(e.name)):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent in found:
            found.add(int(entry.name))
    return found


def listening(pid: int) -> set[str]:
    """The addresses, as hexadecimal digits, on which a process listens in its own network namespace."""
    try:
        links = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:
        return set()
    inodes = {match[1] for link in links if (match := re.fullmatch(r"socket:\[(\d+)]", link))}
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTENING and row[9] in inodes}


def watch(commands: list[list[str]], environment: dict[str, str]) -> tuple[set[str], int]:
    """All addresses on which these runs have ever listened, and how many processes were seen."""
    pipe, env = subprocess.PIPE, with_tests(environment)
    runs = [subprocess.Popen([sys.executable, *c], stdout=pipe, stderr=pipe, text=True, env=env) for c in commands]
    addresses, seen = set[str](), set[int]()
    while any(run.poll() is None for run in runs):
        for pid in run_of({run.pid for run in runs}):
            addresses |= listening(pid)
            seen.add(pid)
        time.sleep(0.03)
    errors = [run.communicate()[1] for run in runs]
    assert not any(run.returncode for run in runs), errors
    return addresses, len(seen)


RUNS = """
from tutti.cli import main
if __name__ == "__main__":
    for number, (spec, options) in enumerate({runs}):
        assert main(["run", spec, *{work}, *options, "--quiet", "--out", f"{out}/{{number}}"]) == 0
"""


def test_runs_on_one_machine(tmp_path: Path) -> None:
    """On every wire, one after the other in one process, since that is quicker."""
    runs: list[tuple[str, list[str]]] = [
        ("ddp", []),
        ("ddp", ["--wire", "tcp"]),
        ("ddp", ["--wire", "torch"]),
        ("torch-ddp", []),
        ("all-reduce", []),  # the backend's own operation
    ]
    script = tmp_path / "runs.py"
    script.write_text(RUNS.format(runs=runs, work=WORK, out=tmp_path))
    addresses, processes = watch([[str(script)]], {})
    assert addresses == {"0100007F"}, "127.0.0.1, by the workers"
    assert processes >= 2 + 2 * len(runs)


def test_a_run_over_two_nodes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nodes = ["--nodes", "2", "--master", f"127.0.0.1:{port}", "--wire", "torch", "--quiet"]
    commands = [
        ["-m", "tutti", "run", "ddp", *WORK, *nodes, "--node-rank", str(rank), "--out", str(tmp_path / str(rank))]
        for rank in range(2)
    ]
    addresses, _ = watch(commands, {"TUTTI_SECRET": "known to both"})
    assert addresses == {"0100007F"}


@needs_hosts
def test_a_run_on_hosts(tmp_path: Path) -> None:
    command = ["-m", "tutti", "run", "torch-ddp", *WORK, "--network", "hosts(200Mbit)", "--out", str(tmp_path)]
    addresses, _ = watch([command], {})
    assert addresses
    assert addresses.isdisjoint(EVERYWHERE)


def test_a_store_of_slurms_tasks() -> None:
    """Nobody but worker 0 can make it there."""
    program = "import time; from tutti.comm.rendezvous import connect; c = connect(); time.sleep(1); c.close()"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    slurm = f"SLURM_NTASKS=2 SLURM_STEP_NODELIST=127.0.0.1 MASTER_PORT={port} TUTTI_SECRET=x"
    tasks = [f"{slurm} SLURM_PROCID={rank} {sys.executable} -c '{program}'" for rank in range(2)]
    shell = f"{tasks[1]} & {tasks[0]}; wait"
    addresses, _ = watch([["-c", f"import os; os._exit(os.system({shell!r}) >> 8)"]], {})
    assert addresses == {"0100007F"}
