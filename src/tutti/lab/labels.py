"""What records are called in a table, a picture or a sentence, and under which conditions they were made."""

from __future__ import annotations

from typing import Any

from tutti.lab.record import Record

_MANY = 3  # so many different values are listed, more are only counted


def shorten(name: str, length: int) -> str:
    """The beginning and the end of a long name; the end is where specs of one family differ."""
    if len(name) <= length:
        return name
    tail = (length - 1) // 2
    return f"{name[: length - 1 - tail]}…{name[len(name) - tail :]}"


def make_labels(records: list[Record], length: int) -> list[str]:
    """One distinct label per record: its name, where names meet with the number of workers, the partition where there
    are several, or a number of its own."""
    labels = [shorten(record.name, length) for record in records]
    if _repeated(labels):
        labels = [_on_workers(label, labels, r, length) for label, r in zip(labels, records, strict=True)]
    if _repeated(labels) and len({find_partition(record) for record in records}) > 1:
        labels = [_on_partition(label, labels, r, length) for label, r in zip(labels, records, strict=True)]
    if _repeated(labels):
        labels = [f"{shorten(label, length - 3)} #{i}" for i, label in enumerate(labels, start=1)]
    return labels


def describe_choices(records: list[Record], labels: list[str]) -> list[str]:
    """What each run has found out by itself, where something was left to it."""
    found = [(label, record.choices) for label, record in zip(labels, records, strict=True) if record.choices]
    return [f"{label} chose {', '.join(f'{what} {which}' for what, which in each.items())}" for label, each in found]


def _on_workers(label: str, labels: list[str], record: Record, length: int) -> str:
    if labels.count(label) == 1:
        return label
    workers = f" on {record.workers}"
    return shorten(label, length - len(workers)) + workers


def _on_partition(label: str, labels: list[str], record: Record, length: int) -> str:
    return label if labels.count(label) == 1 else shorten(f"{label}, {find_partition(record)}", length)


def find_partition(record: Record) -> str:
    """Whose samples were whose; in records from before there were any, anybody's."""
    return str(record.plan.get("partition", "iid"))


def _repeated(labels: list[str]) -> bool:
    return len(set(labels)) < len(labels)


def describe_conditions(records: list[Record]) -> str:
    """What the runs have in common, on one line: task, model, whose samples are whose, batch, learning rate, length,
    workers, network, losses, machine, versions, date."""
    partitions = [find_partition(record) for record in records]
    parts = [
        _each("{}", [r.plan.get("task") for r in records]),
        _each("{}", [r.plan.get("model") or _parameters(r) for r in records]),
        _each("{}", partitions if set(partitions) != {"iid"} else []),
        _each("global batch {}", [r.plan.get("global_batch") for r in records]),
        _each("lr {}", find_rates(records)),
        _count("step", [r.plan.get("steps") for r in records]),
        _count("epoch", [r.plan.get("epochs") for r in records]),
        _count("worker", [r.workers for r in records]),
        _each("{}", ["threads of one process" for r in records if r.launch.get("engine") == "threads"]),
        _each("{}", [_network(r) for r in records]),
        _each("{} of messages lost", _losses(records)),
        _count("core", [r.machine.get("cores") for r in records]),
        _each("{}", [r.machine.get("processor") for r in records]),
        _each("torch {}", [r.versions.get("torch") for r in records]),
        _each("tutti {}", [r.versions.get("tutti") for r in records]),
        _each("{}", [r.begun[:10] for r in records]),
    ]
    return " · ".join(part for part in parts if part)


def describe_rates(records: list[Record], labels: list[str]) -> list[str]:
    """Whose learning rate is which, where they differ."""
    rates = find_rates(records)
    if len(set(rates)) < 2:
        return []
    return ["lr: " + ", ".join(f"{label} {rate}" for label, rate in zip(labels, rates, strict=True) if rate)]


def find_rates(records: list[Record]) -> list[str]:
    """Learning rates; nothing where a record has none."""
    rates = [record.plan.get("lr") for record in records]
    return ["" if rate is None else f"{rate:g}" for rate in rates]


def _network(record: Record) -> str:
    """Nothing where it is the machine's own loopback."""
    asked = str(record.launch.get("network", {}).get("asked", ""))
    return "" if asked == "loopback" else asked


def _losses(records: list[Record]) -> list[str]:
    """Nothing where none are lost; older records know of no loss."""
    losses = [float(record.plan.get("loss", 0.0)) for record in records]
    return [f"{100 * loss:.3g} %" for loss in losses] if any(losses) else []


def _parameters(record: Record) -> str:
    """Stands for a model that the plan leaves to the task."""
    count = record.measurements[0].get("parameters") if record.measurements else None
    return f"{count:,} parameters" if count else ""


def _count(noun: str, counts: list[int | None]) -> str:
    known = sorted({count for count in counts if count is not None})
    text = f"{known[0]} to {known[-1]}" if len(known) > _MANY else join([str(count) for count in known])
    return f"{text} {noun}{'' if known == [1] else 's'}" if known else ""


def _each(pattern: str, values: list[Any]) -> str:
    """The different values there are, in the order they come; nothing where there is none."""
    known = list(dict.fromkeys(str(value) for value in values if value not in (None, "")))
    if not known:
        return ""
    return pattern.format(join(known) if len(known) <= _MANY else join([*known[:_MANY], "others"]))


def join(words: list[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
