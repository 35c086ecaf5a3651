"""Our tcp wire against gloo (and Open MPI where mpi4py is installed): round trips and rings, in one run, alternating.

    python benchmarks/wire.py [--workers 2 4] [--repeats 15] [--json FILE]

The floor of a ring over loopback is memory: every byte is copied into and out of the kernel, 2 * 2(n-1)/n * S per
worker, and added once. Ratios travel, milliseconds do not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tutti.collectives.ring import Ring
from tutti.comm.base import Comm
from tutti.comm.rendezvous import WireOptions
from tutti.launch import LaunchOptions, Report, launch

SIZES = [4 * 2**10, 64 * 2**10, 2**20, 8 * 2**20, 32 * 2**20, 64 * 2**20]


def measure(comm: Comm, report: Report, sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """Rows of medians on worker 0; the ways take turns, and a barrier of our own stands before each.

    Short messages go ten times in a row, so that the workers' coming out of the barrier is not what is measured.
    """
    gloo, ring = comm.native, Ring()
    rows = []
    for nbytes in sizes:
        buffer = torch.ones(nbytes // 4)
        ways = {
            ("round trip", "tcp"): lambda b=buffer: round_trip(comm, b),
            ("round trip", "gloo"): lambda b=buffer: round_trip(gloo, b),
            ("all-reduce", "tcp"): lambda b=buffer: ring.run(comm, b, "gradients/bench"),
            ("all-reduce", "gloo"): lambda b=buffer: gloo.all_reduce(b),
        }
        row_of = in_a_row(nbytes)
        count = max(repeats, min(100, int(2e7 / nbytes)))
        times: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        for _ in range(count):
            for way, call in ways.items():
                buffer.fill_(1.0)
                comm.barrier()
                begun = comm.clock.now()
                for _ in range(row_of):
                    call()
                times[way].append((comm.clock.now() - begun) / row_of)
                if way[0] == "all-reduce":
                    assert buffer[0] == comm.size**row_of == buffer[-1], f"{way} is wrong"
        rows += [row(comm.size, nbytes, *way, seconds) for way, seconds in times.items()]
        report({"event": "size", "bytes": nbytes})
    return rows


def in_a_row(nbytes: int) -> int:
    return 10 if nbytes <= 2**20 else 1


def round_trip(comm: Comm, buffer: torch.Tensor) -> None:
    """Worker 0 sends to worker 1, which sends it back; the others watch."""
    if comm.rank == 0:
        comm.exchange([(1, buffer)], [], "control/there")
        comm.exchange([], [(1, buffer)], "control/back")
    elif comm.rank == 1:
        comm.exchange([], [(0, buffer)], "control/there")
        comm.exchange([(0, buffer)], [], "control/back")


def row(workers: int, nbytes: int, operation: str, wire: str, seconds: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {
        "operation": operation,
        "wire": wire,
        "workers": workers,
        "bytes": nbytes,
        "samples": len(seconds),
        "median": middle,
        "quartiles": [low, high],
    }


def measure_mpi(workers: int, sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """The same under mpirun, beside the others; nothing where it is not installed."""
    if find_spec("mpi4py") is None or shutil.which("mpirun") is None:
        return []
    program = Path(__file__).with_name("wire_mpi.py")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(workers), sys.executable, str(program)]
    done = subprocess.run([*command, str(repeats), *map(str, sizes)], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def print_table(rows: list[dict[str, Any]]) -> None:
    found = {(r["operation"], r["workers"], r["bytes"], r["wire"]): r for r in rows}
    print(f"{'operation':<11}{'workers':>8}{'bytes':>10}{'tcp ms':>10}{'gloo ms':>10}{'tcp/gloo':>10}{'mpi ms':>10}")
    for (operation, workers, nbytes, wire), ours in found.items():
        if wire != "tcp":
            continue
        gloo = found[operation, workers, nbytes, "gloo"]["median"]
        mpi = found.get((operation, workers, nbytes, "mpi"))
        beside = f"{mpi['median'] * 1e3:>10.3f}" if mpi else f"{'-':>10}"
        print(
            f"{operation:<11}{workers:>8}{nbytes:>10}{ours['median'] * 1e3:>10.3f}{gloo * 1e3:>10.3f}"
            f"{ours['median'] / gloo:>10.3f}{beside}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for workers in args.workers:
        options = LaunchOptions(workers, wire=WireOptions("tcp"))
        rows += launch(measure, (args.sizes, args.repeats), options, lambda _: None)
        rows += measure_mpi(workers, args.sizes, args.repeats)
    print_table(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
