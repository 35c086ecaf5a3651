"""From the workers' reports to a word: equal, refused, wrong, hang or error."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loop_patterns.processes import Flat, Report
from loop_patterns.registry import Pattern

_OURS = ("UserError", "RunFailed")


@dataclass
class Verdict:
    word: str  # equal, refused, raises (torch's DDP), wrong, hang, error, or "" where there is nothing to run
    detail: str = ""
    seconds: float = 0.0

    def json(self) -> dict[str, Any]:
        return asdict(self)


def judge(pattern: Pattern, method: str, reports: list[Report], references: list[list[Flat]]) -> Verdict:
    """`references` has, for every variant that counts as right, one result per worker; empty where none is right."""
    seconds = max(report.seconds for report in reports)
    raised = [report for report in reports if report.how == "raised"]
    if crashed := [report for report in reports if report.how == "crashed"]:
        return Verdict("error", f"worker {crashed[0].rank}: {crashed[0].message}", seconds)
    if any(report.how == "hung" for report in reports):
        said = f"; worker {raised[0].rank} said: {_sentence(raised[0])}" if raised else ""
        hung = [report.rank for report in reports if report.how == "hung"]
        return Verdict("hang", f"workers {hung} of {len(reports)} hang{said}", seconds)
    if raised:
        return _judge_raised(method, raised, reports, seconds)
    if method in pattern.refuse or not references:
        return Verdict("wrong", "nothing was refused", seconds)
    found = [_compare([report.result or {} for report in reports], each, pattern.tolerance) for each in references]
    if "" in found:
        return Verdict("equal", "", seconds)
    return Verdict("wrong", found[0], seconds)


def _judge_raised(method: str, raised: list[Report], reports: list[Report], seconds: float) -> Verdict:
    if method == "torch-ddp":
        return Verdict("raises", _sentence(raised[0]), seconds)
    own = [r for r in raised if "SystemExit" not in r.kinds]
    clean = [r for r in own if any(kind in _OURS for kind in r.kinds)]
    if not own:
        return Verdict("wrong", "no other worker noticed", seconds)
    if len(clean) < len(own):
        bad = next(r for r in own if r not in clean)
        return Verdict("error", f"worker {bad.rank}: {bad.kinds[0]}: {_sentence(bad)}", seconds)
    first = sorted(clean, key=lambda r: ("PeerLost" in r.kinds, r.seconds))[0]
    late = f" [after {first.seconds:.0f} s]" if first.seconds > 5 else ""
    silent = [r.rank for r in reports if r.how == "done"]
    alone = f" [workers {silent} ended as if nothing had been]" if silent else ""
    return Verdict("refused", _sentence(first) + late + alone, seconds)


def _sentence(report: Report) -> str:
    text = report.message.strip() or report.kinds[0]
    return re.sub(r"\s+", " ", text)[:600]


def _compare(results: list[Flat], reference: list[Flat], tolerance: float) -> str:
    """What differs, in words; empty if nothing does."""
    for rank, (mine, right) in enumerate(zip(results, reference, strict=True)):
        for key, values in right.items():
            if len(mine.get(key, [])) != len(values):
                return f"worker {rank}: {len(mine.get(key, []))} {key} and not {len(values)}"
            for place, (one, other) in enumerate(zip(mine[key], values, strict=True)):
                if one.shape != other.shape:
                    return f"worker {rank}: {key}[{place}] has the shape {one.shape} and not {other.shape}"
                away = float(np.max(np.abs(one - other), initial=0.0))
                if not away <= tolerance * (1 + float(np.max(np.abs(other), initial=0.0))):
                    return f"worker {rank}: {key}[{place}] differs by {away:.2g}"
    return ""


def tells_apart(pattern: Pattern, reference: list[Flat], alone: list[Flat]) -> bool:
    """Whether a loop without any exchange would give something else than this reference."""
    return _compare(alone, reference, 10 * pattern.tolerance) != ""
