"""Our routes against the backend's own all-reduce (gloo) and Open MPI's, side by side; what the project has promised.

    python benchmarks/routes.py                                  loopback, 4 workers
    python benchmarks/routes.py --network "hosts(1Gbit)"         four hosts, a buffer of 36.9 MB: how far from the floor
    python benchmarks/routes.py --latency                        1 Gbit/s with 10 ms: rounds against bytes, as a picture

It is `tutti bench` (routes take turns sample by sample, medians, every sum checked) with the ratios worked out. Open
MPI runs before and after, where mpirun and mpi4py are installed, and the mean of the two counts. Ratios travel,
milliseconds do not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from wire import measure_mpi

KIB, MIB = 2**10, 2**20
LOOPBACK_SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 32 * MIB, 64 * MIB]
VGG_11 = 36_900_000  # bytes of its gradients
LATENCY_SIZES = "1KiB:16MiB:x4"
OURS = ["ring", "direct", "butterfly", "halving-doubling", "star", "double-binary-tree"]


def bench(*options: str) -> list[dict[str, Any]]:
    """The rows of `tutti bench`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "tutti", "bench", "--json", str(file), "--out", folder, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return list(json.loads(file.read_text()))


def run_mpi(workers: int, sizes: list[int]) -> dict[int, float]:
    """Median seconds of Open MPI's all-reduce by size; nothing where it is not installed."""
    rows = measure_mpi(workers, sizes, repeats=15)
    return {row["bytes"]: row["median"] for row in rows if row["operation"] == "all-reduce"}


# --- loopback --------------------------------------------------------------------------------------------------------


def race_on_loopback(workers: int, seconds: str) -> list[dict[str, Any]]:
    """Twice: taking turns with gloo, and by themselves as Open MPI is. gloo's threads slow down whoever comes next."""
    sizes = ",".join(f"{size}B" for size in LOOPBACK_SIZES)
    common = ["--workers", str(workers), "--sizes", sizes, "--seconds", seconds, "--route", *OURS]
    before = run_mpi(workers, LOOPBACK_SIZES)
    alone = bench(*common, "auto")
    after = run_mpi(workers, LOOPBACK_SIZES)
    beside = bench(*common, "native")
    return [_compare(size, beside, alone, before, after) for size in LOOPBACK_SIZES]


def _compare(
    size: int, beside: list[dict[str, Any]], alone: list[dict[str, Any]], *mpi: dict[int, float]
) -> dict[str, Any]:
    turns, own = ({row["route"]: row["seconds"] for row in rows if row["bytes"] == size} for rows in (beside, alone))
    best, best_alone = (min(OURS, key=lambda route: times[route]) for times in (turns, own))
    known = [each[size] for each in mpi if size in each]
    open_mpi = sum(known) / len(known) if known else None
    return {
        "bytes": size,
        "best": best_alone,
        "beside gloo": turns,
        "alone": {**own, **({"open mpi": open_mpi} if open_mpi else {})},
        "best / gloo": turns[best] / turns["native"],
        "ring / gloo": turns["ring"] / turns["native"],
        "auto / best": own["auto"] / own[best_alone],
        "best / open mpi": own[best_alone] / open_mpi if open_mpi else None,
    }


def print_loopback(found: list[dict[str, Any]]) -> None:
    ratios = ["best / gloo", "ring / gloo", "auto / best", "best / open mpi"]
    print(
        f"{'bytes':>10} {'best of ours':<20}{'ms':>9}{'gloo ms':>9}{'mpi ms':>9}" + "".join(f"{r:>17}" for r in ratios)
    )
    for row in found:
        times = row["alone"]
        cells = [times[row["best"]], row["beside gloo"]["native"], times.get("open mpi")]
        shown = "".join(f"{cell * 1e3:>9.3f}" if cell else f"{'-':>9}" for cell in cells)
        shown += "".join(f"{row[ratio]:>17.3f}" if row[ratio] else f"{'-':>17}" for ratio in ratios)
        print(f"{row['bytes']:>10} {row['best']:<20}{shown}")


# --- hosts -----------------------------------------------------------------------------------------------------------


def race_on_hosts(workers: int, network: str, samples: str) -> list[dict[str, Any]]:
    """Every route's time over the bytes that its own cost function puts on the links, at the rate asked for."""
    routes = [*OURS, "all-gather", "native"]
    options = ["--workers", str(workers), "--sizes", f"{VGG_11}B", "--samples", samples, "--network", network]
    rows = bench(*options, "--route", *routes)
    return [{**row, "own floor": row["predicted"], "distance": row["seconds"] / row["predicted"]} for row in rows]


def print_hosts(found: list[dict[str, Any]]) -> None:
    print(f"{'route':<22}{'ms':>9}{'its floor ms':>14}{'x floor':>9}")
    for row in found:
        print(f"{row['route']:<22}{row['seconds'] * 1e3:>9.0f}{row['own floor'] * 1e3:>14.0f}{row['distance']:>9.3f}")


def draw_latency(workers: int, out: Path) -> None:
    """Time against size on links where a round costs 10 ms."""
    options = ["--network", "hosts(1Gbit, latency=10ms)", "--sizes", LATENCY_SIZES, "--samples", "5"]
    routes = [*OURS, "all-gather", "native"]
    command = [sys.executable, "-m", "tutti", "bench", "--workers", str(workers), *options, "--out", str(out)]
    subprocess.run([*command, "--route", *routes], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--network", default="loopback")
    parser.add_argument("--latency", action="store_true", help="the picture at 10 ms, in --out")
    parser.add_argument("--seconds", default="2", help="per route and size on loopback (default: 2)")
    parser.add_argument("--samples", default="7", help="per route on hosts (default: 7)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/latency"), help="where the picture goes")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.latency:
        draw_latency(args.workers, args.out)
        return
    if args.network == "loopback":
        found = race_on_loopback(args.workers, args.seconds)
        print_loopback(found)
    else:
        found = race_on_hosts(args.workers, args.network, args.samples)
        print_hosts(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
