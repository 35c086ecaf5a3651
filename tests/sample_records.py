"""Records made by hand: every step takes `step` seconds, give or take `spread`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tutti.lab.record import Record


def make_record(
    name: str = "ddp",
    *,
    workers: int = 4,
    step: float = 0.010,
    spread: float = 0.0004,
    hidden: float = 0.0,
    exposed: float = 0.002,
    accuracies: Sequence[float] = (0.5, 0.9, 0.97),
    loss: float = 0.1,
    nbytes: float = 370_302.0,
    source: str = "metered",
    steps: int = 41,
    **plan: Any,
) -> Record:
    """The quartiles of the steps lie at step ± spread / 2 (the first steps are not counted)."""
    seconds = [step + spread * (i % 5 - 2) / 2 for i in range(steps)]
    evaluations = [
        {"epoch": i, "step": i, "seconds": i * step * steps / len(accuracies), "accuracy": a, "loss": loss, "bytes": 0}
        for i, a in enumerate(accuracies, start=1)
    ]
    measurement = {
        "parameters": 61_706,
        "seconds": seconds,
        "hidden": [hidden] * steps,
        "exposed": [exposed] * steps,
        "samples": [64 // workers] * steps,
        "losses": [loss] * steps,
        "evaluations": evaluations,
        "bytes_per_step": nbytes,
        "bytes_source": source,
        "traffic": [],
    }
    return Record(
        name=name,
        spec=name,
        workers=workers,
        plan={"task": "digits", "model": "", "global_batch": 64, "epochs": 3, "steps": None, **plan},
        launch={"engine": "processes", "wire": "tcp"},
        versions={"torch": "2.13.0+cpu", "tutti": "0.1.0"},
        machine={"cores": 2, "processor": "A Processor @ 2.80GHz"},
        begun="2026-01-31T12:00:00+00:00",
        wall_seconds=12.3,
        command="tutti compare",
        measurements=[{"rank": rank, **measurement} for rank in range(workers)],
    )


def make_empty(name: str = "empty") -> Record:
    """A record of a run that measured nothing."""
    record = make_record(name)
    return Record(**{**vars(record), "measurements": []})


def make_race() -> list[Record]:
    """Seven runs as `tutti compare` leaves them."""
    return [
        make_record("single", workers=1, step=0.0086, exposed=0.0, nbytes=0.0),
        make_record("gather-scatter", step=0.0494, exposed=0.0336, source="formula"),
        make_record("all-gather", step=0.0530, exposed=0.0432, nbytes=740_712.0, source="formula"),
        make_record("all-reduce", step=0.0713, exposed=0.0581, source="formula"),
        make_record("ring", step=0.0277, exposed=0.0101),
        make_record("ddp", step=0.0148, exposed=0.0046, hidden=0.0031),
        make_record("torch-ddp", step=0.0287, exposed=0.0122, hidden=0.0023, source="formula"),
    ]
