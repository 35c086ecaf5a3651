"""One run or several, one after another on the same work, and what each leaves behind."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from tutti.algorithms.base import Algorithm
from tutti.clock import Clock
from tutti.comm.lossy import check_wire
from tutti.engine import check
from tutti.errors import UserError, printable
from tutti.lab.record import Record, describe_command, describe_machine, describe_versions
from tutti.lab.saving import Saving
from tutti.launch import LaunchOptions, Report, WorkerFunction, launch
from tutti.networks.base import Network
from tutti.resuming import Keeping
from tutti.spec import parse
from tutti.train import Plan, find_device, train

_LOOPBACK: Final = {"asked": "loopback"}
_CONDITIONS: Final = {
    "engine": "engine",
    "wire": "wire",
    "tls": "encryption",
    "nodes": "number of nodes",
    "timeout": "deadline",
    "threads": "number of threads",
}
_PACKAGES: Final = ("tutti", "torch", "python")
_USUAL: Final = dataclasses.asdict(Plan())  # of fields that older records do not have


class Audience(Protocol):
    """Who is told how the runs go on (lab.screen.Screen)."""

    def start(self, name: str, spec: str, index: int, count: int) -> None: ...
    def event(self, event: dict[str, object]) -> None: ...
    def done(self, record: Record) -> None: ...
    def failed(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...


@dataclass(frozen=True)
class Entry:
    """One thing to run: its name as typed, what that means, and what of the plan is its own (a tuned learning rate)."""

    name: str
    algorithm: Algorithm
    changes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, spec: str, name: str = "") -> Entry:
        algorithm = parse(spec, Algorithm)
        return cls(printable(" ".join((name or spec).split())), algorithm)

    def adapt(self, plan: Plan) -> Plan:
        return dataclasses.replace(plan, **self.changes)

    def launch_options(self, options: LaunchOptions) -> LaunchOptions:
        """The same place, with the number of workers that this algorithm takes; each computes with as many threads."""
        workers = 1 if self.algorithm.one_worker else options.workers
        if workers == options.workers:
            return options
        return dataclasses.replace(options, workers=1, nodes=1, node_rank=0, threads=options.threads_each())

    @property
    def label(self) -> str:
        """Its name as a part of a file's name."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-")[:60]


def check_all(entries: list[Entry], plan: Plan, options: LaunchOptions, network: Network) -> None:
    """Everything that can be known to be wrong before the first worker starts."""
    options.check()
    if network.hosts:
        options.check_hosts(str(network))
        network.check(options.workers)
    device = find_device(plan.device, 0)
    wire = options.wire_used
    for entry in entries:
        workers = entry.launch_options(options).workers
        check(entry.algorithm, wire, workers, device)
        plan.check(workers)
        if entry.algorithm.counts_steps():
            entry.algorithm.expect(plan.count_steps(workers))
        if plan.loss:
            _check_loss(entry.algorithm, wire)


def _check_loss(algorithm: Algorithm, wire: str) -> None:
    """Refuse what does not pass the wire on which messages get lost; threads have no backend to leave them to."""
    check_wire(wire)
    if wire != "threads" and any(part.by_backend for part in algorithm.walk()):
        raise UserError(
            f"'{algorithm}' leaves its messages to the backend, which loses none; take a route such as ring, "
            "or leave --loss out"
        )


def run_entries(
    entries: list[Entry],
    plan: Plan,
    options: LaunchOptions,
    out: Path,
    audience: Audience,
    resume: bool = False,
    save: Path | None = None,
    keeping: Keeping | None = None,
    saving: Saving | None = None,
) -> list[Record]:
    """Run them in the order given; each record is on disk before the next run begins. `save` gets the mean model.
    With `saving`, a full disk ends nothing."""
    kept = (keeping,) if keeping else ()
    args = (str(save.resolve()) if save else "", *kept) if save or kept else ()
    records = []
    for index, entry in enumerate(entries, start=1):
        if entry.algorithm.one_worker and options.node_rank > 0:
            continue  # the first node has the one worker
        own = entry.adapt(plan)
        record = _find_kept(entry, own, options, out, audience) if resume else None
        if record is None:
            audience.start(entry.name, entry.algorithm.spell(), index, len(entries))
            record = run_once(entry, own, options, hear_both(audience, saving), args=args)
            if record is None:
                continue  # another node or rank has worker 0
            save_record(record, find_record(out, entry, index), audience, saving)
        audience.done(record)
        records.append(record)
    return records


def save_record(record: Record, path: Path, audience: Audience, saving: Saving | None) -> None:
    """With `saving` it may have to wait, which the audience is told."""
    if saving is None:
        record.save(path)
    elif reason := saving.save(record, path):
        audience.note(f"cannot write {path}: {reason}; the record stays in memory")


def hear_both(audience: Audience, saving: Saving | None) -> Report:
    """For the events of a run."""

    def listen(event: dict[str, Any]) -> None:
        if event.get("event") != "problem":
            audience.event(event)
        elif saving is None or saving.hear(event):
            audience.note(str(event["problem"]))

    return listen


def find_record(out: Path, entry: Entry, index: int = 1) -> Path:
    """Where the record of one of several runs goes."""
    return out / f"{index:02d}-{entry.label}.json"


def run_once(
    entry: Entry,
    plan: Plan,
    options: LaunchOptions,
    listener: Report,
    function: WorkerFunction[Any] = train,
    args: tuple[Any, ...] = (),
) -> Record | None:
    """One run of `function` with spec, plan and `args`; None on a node or rank that has no worker 0."""
    options = entry.launch_options(options)
    clock = Clock()
    begun, started = datetime.now(UTC), clock.now()
    measurements = launch(function, (str(entry.algorithm), plan, *args), options, listener)
    if measurements is None:
        return None
    return Record(
        name=entry.name,
        spec=str(entry.algorithm),
        workers=options.workers,
        plan=dataclasses.asdict(plan),
        launch={**describe_launch(options), "network": options.fabric.description or _LOOPBACK},
        versions=describe_versions(),
        machine=describe_machine(),
        begun=begun.isoformat(timespec="seconds"),
        wall_seconds=clock.now() - started,
        command=describe_command(),
        measurements=measurements,
        spelled=entry.algorithm.spell(),
    )


def _find_kept(entry: Entry, plan: Plan, options: LaunchOptions, out: Path, audience: Audience) -> Record | None:
    """The record of the same run that lies in the folder already, whatever its number there. Where those of the same
    run were made under other conditions, the audience is told why it is run again."""
    network = (options.fabric.description or _LOOPBACK)["asked"]
    options, spec = entry.launch_options(options), str(entry.algorithm)
    reasons = []
    for path in sorted(out.glob(f"*-{entry.label}.json")):
        try:
            record = finished(path, spec, plan, options.workers, network)
        except UserError as error:
            reasons.append(f"{error}: run again")
            continue
        differs = find_difference(record, options) if record else ""
        if record and not differs:
            return record
        reasons += [f"{path.name} {differs}: run again"] if differs else []
    for reason in reasons:
        audience.note(reason)
    return None


def finished(path: Path, spec: str, plan: Plan, workers: int, network: str) -> Record | None:
    """The record of the same run made earlier, under whatever conditions, if there is one."""
    if not path.exists():
        return None
    record = Record.load(path)
    asked = record.launch.get("network", _LOOPBACK)["asked"]
    same = (
        record.workers == workers
        and {**_USUAL, **record.plan} == dataclasses.asdict(plan)
        and parse(record.spec, Algorithm) == parse(spec, Algorithm)
        and parse(asked, Network) == parse(network, Network)
    )
    return record if same else None


def find_difference(record: Record, options: LaunchOptions) -> str:
    """What of the conditions is not as it would be now, as "is of torch 2.12"; empty where nothing differs.

    A record that does not say (an older one) counts as different, except that before records said so there was one
    node and no TLS.
    """
    launch = {"tls": False, "nodes": 1, **record.launch}
    for key, value in describe_launch(options).items():
        if key not in launch:
            return f"does not say its {_CONDITIONS[key]}"
        if launch[key] != value:
            return _say_difference(key, launch[key])
    versions = describe_versions()
    for package in _PACKAGES:
        if package not in record.versions:
            return f"does not say its version of {package}"
        if record.versions[package] != versions[package]:
            return f"is of {package} {record.versions[package]}"
    return ""


def _say_difference(key: str, was: Any) -> str:
    if key == "tls":
        return "is with TLS" if was else "is without TLS"
    value = f"{was:g} s" if key == "timeout" else str(was)
    return f"is of another {_CONDITIONS[key]} ({value})"


def describe_launch(options: LaunchOptions) -> dict[str, Any]:
    """What of the launch a record keeps beside the network, and a later run compares."""
    return {
        "engine": options.engine,
        "wire": options.wire_used,
        "tls": options.wire.tls is not None,
        "nodes": options.nodes,
        "timeout": options.wire.timeout,
        "threads": options.threads_each(),
    }
