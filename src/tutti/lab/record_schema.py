"""What the file of a record must hold, as types, and what must agree in it.

Fields that are not required are those that older versions did not write. Fields that are not here belong to a later
version, or are only shown as they are.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Required, TypedDict

from tutti.errors import printable
from tutti.lab.schema import Amount, Count, Number, find_fault
from tutti.lab.times import Times

_BY_STEP = ("seconds", "hidden", "exposed", "samples", "losses")


# a host's link and quota, as they were measured; `in` cannot be the name of a field
_Host = TypedDict(
    "_Host",
    {
        "host": Required[Count],
        "asked": Amount | None,
        "out": Amount,
        "in": Amount,
        "payload_out": Amount | None,
        "payload_in": Amount | None,
        "latency": Amount,
        "cpu_asked": Amount | None,
        "cpu": Amount | None,
    },
    total=False,
)


class _Network(TypedDict, total=False):
    asked: Required[str]
    measured: list[_Host]
    system_congestion_control: str


class _Plan(TypedDict, total=False):
    """As train.Plan has it."""

    task: Required[str]
    model: str
    global_batch: Count
    epochs: Count | None
    steps: Count | None
    lr: Number
    momentum: Number
    optimizer: str
    schedule: str
    seed: int
    device: str
    data: str
    partition: str
    samples: Count | None
    loss: Amount


class _Launch(TypedDict, total=False):
    engine: str
    wire: str
    tls: bool
    nodes: Count
    timeout: Amount
    threads: Count
    program: str
    network: _Network


class _Evaluation(TypedDict, total=False):
    epoch: Required[Amount]
    step: Required[Count]
    accuracy: Required[float]
    loss: Required[float]
    bytes: Required[Amount]
    distance: float
    seconds: Amount
    enter: Amount
    leave: Amount


class _Traffic(TypedDict, total=False):
    kind: Required[str]
    peer: Count
    sent: Amount
    received: Amount
    messages: Count
    seconds: Amount
    lost: Count
    formula: Amount


class _Measurement(TypedDict, total=False):
    """As stopwatch.Measurements has it."""

    rank: Count
    parameters: Count
    classes: list[Count]
    seconds: Required[list[Amount]]
    ends: list[Amount]
    hidden: Required[list[Number]]
    exposed: Required[list[Number]]
    samples: Required[list[Count]]
    losses: Required[list[float]]
    evaluations: Required[list[_Evaluation]]
    own_accuracy: float | None
    bytes_per_step: Required[Amount]
    bytes_source: Required[str]
    interface_bytes_per_step: Amount | None
    traffic: list[_Traffic]
    lost: Count
    choices: dict[str, str]
    continued: list[Count]


class _Machine(TypedDict, total=False):
    system: str
    processor: str
    cores: Count
    host: str


class _Record(TypedDict, total=False):
    """As record.Record has it."""

    name: Required[str]
    spec: Required[str]
    workers: Required[Count]
    plan: Required[_Plan]
    launch: Required[_Launch]
    versions: Required[dict[str, str]]
    machine: Required[_Machine]
    begun: Required[str]
    wall_seconds: Required[Amount]
    command: Required[str]
    measurements: Required[list[_Measurement]]
    spelled: str


class _Started(TypedDict, total=False):
    """As started.Started has it."""

    name: Required[str]
    spec: Required[str]
    plan: Required[_Plan]
    options: Required[dict[str, Any]]
    finished: str
    tutti: str
    format: int


def find_started_fault(data: Any) -> str:
    """The same for the file of a run that goes on."""
    return find_fault(data, _Started)


def clean(data: Any) -> Any:
    """The same data with every text as a terminal may show it, and the network of older records, a text, in its place
    of today."""
    made = _clean(data)
    launch = made.get("launch") if isinstance(made, dict) else None
    if isinstance(launch, dict) and "network" in launch and not isinstance(launch["network"], dict):
        network = launch.pop("network")
        return {**made, "launch": {**launch, "network": {"asked": network}} if network else launch}
    return made


def _clean(data: Any) -> Any:
    if isinstance(data, str):
        return printable(data, len(data))
    if isinstance(data, dict):
        return {printable(key, len(key)): _clean(value) for key, value in data.items()}
    if isinstance(data, list) and not all(isinstance(each, float | int) for each in data):
        return [_clean(each) for each in data]
    return data


def find_record_fault(data: Any) -> str:
    """The first thing that is wrong with a record, as a part of a sentence; empty where it can be used."""
    return find_fault(data, _Record) or _find_disagreement(data)


def _find_disagreement(data: dict[str, Any]) -> str:
    """What has the right type and cannot be: lists of different lengths, or an evaluation after the last step."""
    try:
        datetime.fromisoformat(data["begun"])
    except ValueError:
        return f"begun is '{data['begun'][:40]}', not a date and time"
    rows = data["measurements"]
    if rows and len(rows) != data["workers"]:
        return f"measurements has {len(rows)} entries for {data['workers']} workers"
    steps = len(rows[0]["seconds"]) if rows else 0
    if rows and not steps:
        return "measurements[0].seconds is empty"
    evaluations = len(rows[0]["evaluations"]) if rows else 0
    for index, row in enumerate(rows):
        for key in (*_BY_STEP, *(["ends"] if row.get("ends") else [])):
            if len(row[key]) != steps:
                return f"measurements[{index}].{key} has {len(row[key])} entries for {steps} steps"
        if len(row["evaluations"]) != evaluations:
            return f"measurements[{index}].evaluations has {len(row['evaluations'])} entries, not {evaluations}"
        if fault := _find_wrong_evaluation(row, steps, clocks=all(each.get("ends") for each in rows)):
            return f"measurements[{index}].{fault}"
    return _find_wrong_times(rows)


def _find_wrong_times(rows: list[dict[str, Any]]) -> str:
    """Where the steps of the run have taken no time, or less than none."""
    times = Times.read(rows)
    if times is None:
        return "" if not rows or sum(rows[0]["seconds"]) > 0 else "measurements[0].seconds are all zero"
    wrong = next((index for index, seconds in enumerate(times.steps) if seconds < 0), None)
    if wrong is not None:
        return f"measurements[0].ends[{wrong}] is before the step that it ends"
    return "" if times.total > 0 else "measurements[0].ends are all zero"


def _find_wrong_evaluation(row: dict[str, Any], steps: int, clocks: bool) -> str:
    for number, entry in enumerate(row["evaluations"]):
        if entry["step"] > steps:
            return f"evaluations[{number}].step is {entry['step']}, and there are {steps} steps"
        wanted = ("enter", "leave") if clocks else ("seconds",)
        if missing := [key for key in wanted if key not in entry]:
            return f"evaluations[{number}].{missing[0]} is missing"
    return ""
