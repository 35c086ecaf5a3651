"""Records made by hand: every step takes `step` seconds, give or take `spread`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import accumulate
from itertools import count as count_up
from typing import Any

from tutti.lab.record import Record

_EVALUATION = 0.05  # seconds


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
    losses: Sequence[float] = (),
    nbytes: float = 370_302.0,
    source: str = "metered",
    steps: int = 41,
    network: dict[str, Any] | None = None,
    choices: dict[str, str] | None = None,
    distances: Sequence[float] = (),
    own: Sequence[float] = (),
    **plan: Any,
) -> Record:
    """The quartiles of the steps lie at step ± spread / 2 (the first steps are not counted).

    `losses` are those of the evaluations, where they are not all `loss`. Every worker sends to the next one. Where
    workers differ, `distances` are those of the evaluations and `own` the accuracies of their own models.
    """
    seconds = [step + spread * (0, 1, -1, 2, -2)[i % 5] / 2 for i in range(steps)]
    count = len(accuracies)
    over = [max(1, i * steps // count) for i in range(1, count + 1)]
    ends = [_EVALUATION * sum(each <= i for each in over) + end for i, end in enumerate(accumulate(seconds))]
    evaluations = [
        {"epoch": i, "step": at, "enter": ends[at - 1], "accuracy": accuracy, "loss": value, "bytes": i * nbytes}
        for i, at, accuracy, value in zip(count_up(1), over, accuracies, losses or [loss] * count, strict=False)
    ]
    for evaluation in evaluations:
        evaluation["leave"] = evaluation["enter"] + _EVALUATION
    for evaluation, distance in zip(evaluations, distances, strict=False):
        evaluation["distance"] = distance
    measurement = {
        "parameters": 61_706,
        "seconds": seconds,
        "ends": ends,
        "hidden": [hidden] * steps,
        "exposed": [exposed] * steps,
        "samples": [64 // workers] * steps,
        "losses": [2.3, *[loss] * (steps - 1)][:steps],
        "evaluations": evaluations,
        "bytes_per_step": nbytes,
        "bytes_source": source,
        "interface_bytes_per_step": nbytes if source == "interface" else None,
        "choices": choices or {},
    }
    return Record(
        name=name,
        spec=name,
        workers=workers,
        plan={"task": "digits", "model": "", "global_batch": 64, "epochs": 3, "steps": None, **plan},
        launch={"engine": "processes", "wire": "tcp", **({"network": network} if network else {})},
        versions={"torch": "2.13.0+cpu", "tutti": "0.1.0"},
        machine={"cores": 2, "processor": "A Processor @ 2.80GHz"},
        begun="2026-01-31T12:00:00+00:00",
        wall_seconds=12.3,
        command="tutti compare",
        measurements=[
            {
                "rank": rank,
                **measurement,
                "traffic": _traffic(rank, workers, nbytes * steps, source),
                **({"own_accuracy": own[rank]} if own else {}),
            }
            for rank in range(workers)
        ],
    )


def _traffic(rank: int, workers: int, nbytes: float, source: str) -> list[dict[str, Any]]:
    if workers == 1:
        return []
    peer, tally = (rank + 1) % workers, {"messages": 80, "seconds": 0.2}
    control = {"kind": "control", "peer": peer, "sent": 39.0, "received": 39.0, **tally}
    gradients = {"kind": "gradients", "peer": peer, "sent": nbytes, "received": nbytes, **tally}
    return [control, {"kind": "gradients", "formula": nbytes} if source == "formula" else gradients]


def make_empty(name: str = "empty") -> Record:
    """A record of a run that measured nothing."""
    record = make_record(name)
    return dataclasses.replace(record, measurements=[])


def make_older(record: Record) -> Record:
    """As workers wrote it before they shared a clock."""
    new = ("ends", "enter", "leave")
    evaluations = [{key: value for key, value in entry.items() if key not in new} for entry in record.evaluations]
    measurements = [
        {**{key: value for key, value in measurement.items() if key not in new}, "evaluations": evaluations}
        for measurement in record.measurements
    ]
    return dataclasses.replace(record, measurements=measurements)


def make_learning_race() -> list[Record]:
    """The same runs over twelve epochs, each with its own way of learning; one of them diverges."""
    race = []
    for index, record in enumerate(make_race()):
        accuracies = [0.975 - 0.6 * 0.6**epoch - 0.004 * index for epoch in range(12)]
        losses = [0.05 + 1.5 * 0.55**epoch + 0.02 * index for epoch in range(12)]
        if record.name == "all-gather":
            accuracies[4:], losses[4:] = [0.1] * 8, [math.nan] * 8
        figures = {key: record.anatomy[key] for key in ("hidden", "exposed")}
        race.append(
            make_record(
                record.name,
                workers=record.workers,
                step=record.step_seconds,
                accuracies=accuracies,
                losses=losses,
                nbytes=record.bytes_per_step,
                source=record.bytes_source,
                network={"asked": "hosts(rate=100Mbit)", "measured": [{"host": 0, "asked": 1e8, "out": 9.91e7}]},
                epochs=12,
                **figures,
            )
        )
    return race


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
