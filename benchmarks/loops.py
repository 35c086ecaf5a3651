"""The loops that people already have, under torch's DDP and four methods: equal to a reference, refused, or wrong.

    python benchmarks/loops.py [--only NAME ...] [--methods ddp d-psgd] [--out docs/results/loops.md] [--list]

Every pattern (benchmarks/loop_patterns/) runs on real worker processes, first under the references, then under each
method. With --out the page and, next to it, the figures as JSON are written; with --only as well the rows of the other
patterns stay as they are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from loop_patterns.judge import Verdict, judge, tells_apart
from loop_patterns.page import make_page
from loop_patterns.processes import Flat, WorkerSet
from loop_patterns.registry import Pattern, load
from loop_patterns.session import METHODS, ORACLES

LIMIT = 25.0  # seconds for one pattern under one method


class NoReference(Exception):
    """The reference itself broke: the pattern is at fault."""


class Runner:
    """Keeps one set of workers of each size, and a new one for each that broke."""

    def __init__(self) -> None:
        self._sets: dict[int, WorkerSet] = {}

    def run(self, pattern: Pattern, method: str, size: int, variant: str = "") -> list[Any]:
        if size not in self._sets or not self._sets[size].usable:
            self._sets[size] = WorkerSet(size)
        return self._sets[size].run(pattern.name, method, variant, LIMIT)

    def reference(self, pattern: Pattern, kind: str, size: int, variant: str = "") -> list[Flat]:
        reports = self.run(pattern, f"oracle {kind}", size, variant)
        for report in reports:
            if report.how != "done":
                raise NoReference(f"{pattern.name}, reference {kind}: {report.how}: {report.message}\n{report.trace}")
        return [report.result for report in reports]

    def close(self) -> None:
        for each in self._sets.values():
            if each.usable:
                each.close()


def try_pattern(runner: Runner, pattern: Pattern, methods: list[str]) -> dict[str, Verdict]:
    """What becomes of this pattern under each method."""
    row: dict[str, Verdict] = {}
    known: dict[tuple[str, int], list[list[Flat]]] = {}
    for method in methods:
        if method not in pattern.methods:
            row[method] = Verdict("")
            continue
        size, kind = pattern.size(method), ORACLES[method]
        if method == "torch-ddp" and pattern.must == "refuse" and method not in pattern.refuse:
            row[method] = _without_reference(runner, pattern, method, size)
            continue
        if method not in pattern.refuse and (kind, size) not in known:
            known[kind, size] = [runner.reference(pattern, kind, size, variant) for variant in pattern.variants]
            alone = runner.reference(pattern, "alone", size)
            if not pattern.blind and not tells_apart(pattern, known[kind, size][0], alone):
                print(f"warning: {pattern.name} gives the same without any exchange ({kind})", flush=True)
        references = known.get((kind, size), []) if method not in pattern.refuse else []
        row[method] = judge(pattern, method, runner.run(pattern, method, size), references)
    return row


def _without_reference(runner: Runner, pattern: Pattern, method: str, size: int) -> Verdict:
    """torch's DDP where nothing is right: what it does, if it is not to train as if nothing were wrong."""
    return judge(pattern, method, runner.run(pattern, method, size), [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="patterns, by name")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, help="the page, for example docs/results/loops.md")
    parser.add_argument("--list", action="store_true", help="the names of all patterns")
    args = parser.parse_args()
    patterns = load()
    if args.list:
        print("\n".join(f"{p.name:32} {p.title}" for p in patterns.values()))
        return
    unknown = [name for name in args.only or [] if name not in patterns]
    if unknown:
        parser.error(f"there is no pattern {', '.join(unknown)}; --list names all")
    table = _measure([patterns[name] for name in args.only or patterns], args.methods)
    if args.out:
        known = json.loads(record.read_text())["table"] if (record := args.out.with_suffix(".json")).exists() else {}
        known = known if args.only else {}
        table = {
            name: {**known.get(name, {}), **table.get(name, {})} for name in patterns if name in {**known, **table}
        }
        _write(args.out, table, patterns)


def _measure(patterns: list[Pattern], methods: list[str]) -> dict[str, dict[str, Any]]:
    runner, table, begun = Runner(), {}, time.monotonic()
    try:
        for pattern in patterns:
            try:
                row = try_pattern(runner, pattern, methods)
            except NoReference as error:
                print(f"warning: {error}", flush=True)
                continue
            table[pattern.name] = {method: verdict.json() for method, verdict in row.items()}
            print(f"{pattern.name:28} " + " ".join(f"{row[m].word or '-':9}" for m in methods), flush=True)
            for method, verdict in row.items():
                if verdict.detail:
                    print(f"    {method}: {verdict.detail}", flush=True)
    finally:
        runner.close()
    print(f"{len(table)} patterns in {time.monotonic() - begun:.0f} s")
    return table


def _write(out: Path, table: dict[str, dict[str, Any]], patterns: dict[str, Pattern]) -> None:
    import torch

    import tutti

    date = datetime.date.today().isoformat()
    command = f"python benchmarks/loops.py --out {out}"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(make_page(table, command, date, tutti.__version__))
    musts = {name: patterns[name].must for name in table}
    record = {"date": date, "torch": torch.__version__, "tutti": tutti.__version__, "must": musts, "table": table}
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
