"""Short sentences that are true of the records, beside the finding of lab/table.py: counted, never guessed."""

from __future__ import annotations

import math
from typing import Any

from tutti.lab.equal_accuracy import differ, find_equal
from tutti.lab.export import flatten
from tutti.lab.figures import Figures, read_figures
from tutti.lab.labels import describe_choices, join
from tutti.lab.limits import describe_limits
from tutti.lab.network import find_doubts
from tutti.lab.record import Record
from tutti.lab.table import describe_own_models
from tutti.lab.units import format_bytes, format_percent, format_seconds

_LABEL_LENGTH = 60
_MANY = 4  # so many runs are named, more are only counted
_HARDLY = 0.01  # a share below this is as good as nothing
_LEARNT_LITTLE = 0.5  # reaching an accuracy below this is no race
_ABOUT = 1.1  # times as much is about the same
_BEFORE = {"partition": "iid", "loss": 0.0}  # what older records do not say, since nothing else could be


def make_facts(records: list[Record]) -> list[str]:
    """Whatever there is to say; bytes and seconds of runs that do different work are not held against each other."""
    figures = read_figures(records, _LABEL_LENGTH)
    workers = [each for each in figures if each.workers > 1 and math.isfinite(each.step)]
    facts = [_say_unmeasured(figures)]
    if len({each.work for each in figures if math.isfinite(each.step)}) == 1:
        facts += [_say_sent(workers), _say_first(records, figures)]
    facts += [f"{said}." for said in describe_choices(records, [each.label for each in figures])]
    facts += [f"{said}." for said in describe_limits(records, [each.label for each in figures])]
    facts += [_say_lost(records, figures)]
    facts += _say_own_models(records)
    facts += _say_doubts(records)
    facts += [_say_waiting(workers), _say_hidden(workers), _say_differences(records)]
    return [fact for fact in facts if fact]


def _say_unmeasured(figures: list[Figures]) -> str:
    missing = [each.label for each in figures if not math.isfinite(each.step)]
    return f"There are no measurements of {_name(missing)}." if missing and len(missing) < len(figures) else ""


def _say_sent(workers: list[Figures]) -> str:
    sizes = {each.label: format_bytes(each.nbytes) for each in workers if math.isfinite(each.nbytes)}
    if len(sizes) < 2:
        return ""
    most, least = (choose(workers, key=lambda each: each.nbytes) for choose in (max, min))
    if len(set(sizes.values())) == 1:
        return f"All distributed runs send the same: {sizes[most.label]} per worker and step."
    if least.nbytes > 0 and most.nbytes / least.nbytes < _ABOUT:
        span = f"{sizes[least.label]} to {sizes[most.label]}"
        return f"All distributed runs send about the same: {span} per worker and step."
    greedy, modest = ([label for label, size in sizes.items() if size == sizes[e.label]] for e in (most, least))
    size = f"{sizes[most.label]} per worker and step"
    if least.nbytes == 0:
        return f"Most is sent by {_name(greedy)}: {size}; nothing is sent by {_name(modest)}."
    others = _name(modest) if len(greedy) + len(modest) < len(sizes) or len(modest) < 2 else f"the {len(modest)} others"
    return f"Most is sent by {_name(greedy)}: {size}, {most.nbytes / least.nbytes:.2g} times as much as by {others}."


def _say_first(records: list[Record], figures: list[Figures]) -> str:
    """Who is first and who last at the accuracy that all of them reach; where accuracies differ the finding says it."""
    found = find_equal(records, figures)
    if found is None or found.accuracy < _LEARNT_LITTLE or differ([f for f in figures if f.workers > 1] or figures):
        return ""
    common, times = found.accuracy, found.times
    (first, winner), (last, loser) = times[0], times[-1]
    if format_seconds(first) == format_seconds(last):
        return ""
    all_of = f"all {len(times)} runs" if len(times) == len(records) else f"{len(times)} runs that did not diverge"
    return (
        f"{format_percent(common)} accuracy is reached by {all_of}: first by {winner}, after {format_seconds(first)} "
        f"of training, and last by {loser}, after {format_seconds(last)}."
    )


def _say_lost(records: list[Record], figures: list[Figures]) -> str:
    """How many messages; whether they were sent again is the algorithm's affair."""
    counts = [sum(int(m.get("lost", 0)) for m in record.measurements) for record in records]
    lost = [f"{count:,} of {each.label}" for count, each in zip(counts, figures, strict=True) if count]
    if len(lost) > _MANY:
        return f"{sum(counts):,} messages were lost on their way, in {len(lost)} of the runs."
    return f"Messages lost on their way: {join(lost)}." if lost else ""


def _say_own_models(records: list[Record]) -> list[str]:
    said = describe_own_models(records)
    return [f"{each}." for each in said] if len(said) <= _MANY else []


def _say_waiting(workers: list[Figures]) -> str:
    if len(workers) < 2:
        return ""
    shares = [(each.exposed / each.step, each.label) for each in workers]
    most_first = sorted(shares, key=lambda pair: -pair[0])
    waiting = [f"{label} ({format_percent(share, 0)})" for share, label in most_first if share > 0.5]
    if not waiting:
        share, leaders = _find_leaders(shares)
        return (
            "No distributed run spends more than half of its step waiting for communication; "
            f"the most is {share}, by {_name(leaders)}."
        )
    if len(waiting) > _MANY:
        who = f"{len(waiting)} of {len(workers)} distributed runs, most of all {waiting[0]}"
    else:
        who = join(waiting)
    return f"More than half of a step is waiting for communication in {who}."


def _say_hidden(workers: list[Figures]) -> str:
    shares = [(each.hidden / (each.hidden + each.exposed), each.label) for each in workers if each.exposed > 0]
    if not shares:
        return ""
    if max(shares)[0] < _HARDLY:
        return "No communication worth mentioning is hidden behind computing."
    share, leaders = _find_leaders(shares)
    more = ", more than any other" if len(leaders) < len(shares) else ""
    hide, whose = ("hides", "its") if len(leaders) == 1 else ("hide", "their")
    return f"{_name(leaders)} {hide} {share} of {whose} communication behind computing{more}."


def _find_leaders(shares: list[tuple[float, str]]) -> tuple[str, list[str]]:
    """The largest share as it is written, and all of which that is written."""
    largest = format_percent(max(shares)[0], 0)
    return largest, [label for share, label in shares if format_percent(share, 0) == largest]


def _say_differences(records: list[Record]) -> str:
    """What else is not the same in all runs."""
    aspects: dict[str, list[Any]] = {
        "machine": [record.machine for record in records],
        "versions": [record.versions for record in records],
        "network": [flatten(record)["network"] for record in records],
        "engine or wire": [(record.launch.get("engine"), record.launch.get("wire")) for record in records],
    }
    keys = dict.fromkeys(key for record in records for key in record.plan)
    aspects |= {key.replace("_", " "): [record.plan.get(key, _BEFORE.get(key)) for record in records] for key in keys}
    differing = [name for name, values in aspects.items() if any(value != values[0] for value in values)]
    return f"The runs differ in {join(differing)}: see the conditions." if differing else ""


def _name(labels: list[str]) -> str:
    return join(labels) if len(labels) <= _MANY else f"{len(labels)} of the runs"


def _say_doubts(records: list[Record]) -> list[str]:
    """What was found wrong with the network when it was measured."""
    return list(dict.fromkeys(doubt for record in records for doubt in find_doubts(record.launch.get("network"))))
