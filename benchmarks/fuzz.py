"""Malformed input in large numbers: specs, command lines, records, reports, data files and the small files of runs.

    python benchmarks/fuzz.py                    100,000 specs and 5,000 of the others; about an hour on one core
    python benchmarks/fuzz.py --share 0.02       the same kinds, a fiftieth of them
    python benchmarks/fuzz.py --only records     one kind

Inputs are those of tests/fuzzing.py, one per seed. A row says how many there were, how many ended in a traceback, how
many took longer than half a minute, the slowest in seconds, and the peak memory of the process that tried them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

COUNTS = {
    "specs": 100_000,
    "command lines": 5_000,
    "records": 5_000,
    "reports": 1_000,
    "data files": 5_000,
    "files of runs": 5_000,
}
HANGS = 30.0  # seconds; a command may start another process, which imports torch
_SHOWN = 3  # tracebacks of a kind


class Hang(Exception):
    pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual numbers")
    parser.add_argument("--only", choices=COUNTS)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed; tests begin at 0")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(_try(args.child, args.first, round(COUNTS[args.child] * args.share))))
        return 0
    rows = []
    print("| input | tried | tracebacks | hangs | slowest | peak memory |\n|---|---|---|---|---|---|")
    for kind in [args.only] if args.only else COUNTS:
        words = [sys.executable, __file__, "--share", str(args.share), "--first", str(args.first), "--child", kind]
        found = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()[-1])
        rows.append(found)
        print(
            f"| {kind} | {found['tried']:,} | {found['tracebacks']} | {found['hangs']} | {found['slowest']:.1f} s "
            f"| {found['memory'] / 1e6:.0f} MB |",
            flush=True,
        )
    return 1 if any(row["tracebacks"] or row["hangs"] for row in rows) else 0


def _try(kind: str, first: int, count: int) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from fuzzing import KINDS

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _give_up)
    found = {"tried": count, "tracebacks": 0, "hangs": 0, "slowest": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for seed in range(first, first + count):
            begun = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, HANGS)
            try:
                KINDS[kind](Random(seed), Path(folder))
            except Hang:
                found["hangs"] += 1
                print(f"{kind}, seed {seed}: hangs", file=sys.stderr)
            except Exception:
                found["tracebacks"] += 1
                if found["tracebacks"] <= _SHOWN:
                    print(f"{kind}, seed {seed}:\n{traceback.format_exc()}", file=sys.stderr)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            found["slowest"] = max(found["slowest"], time.monotonic() - begun)
        os.chdir("/")
    return {**found, "memory": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def _give_up(*_: Any) -> None:
    raise Hang


if __name__ == "__main__":
    sys.exit(main())
