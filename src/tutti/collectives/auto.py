"""Auto: the fastest route for the buffer's length, by a short measurement at the start.

    butterfly for short buffers and ring for long ones, until it has measured

`prepare` times the candidates on the wire itself, from 1 KiB to 16 MiB or until four seconds are over, and keeps the
fastest for every length; longer buffers take the route of the longest that was tried, or the ring where that was a
short one. What was measured when the time was over is kept as incomplete: the next run measures again, and what it has
no time for stays as it was, until every length has been measured. Candidates take turns; those that
turn out slow leave, and the time goes to those that are hard to tell apart. All workers keep the same one, that with
the least time, the median of the slowest worker's. The choice is kept in the cache per machines, worker count
and wire (~/.cache/tutti/routes.json; remove it to measure again), but not for emulated hosts, whose links are new every
time. Workers that are threads do not measure. Rounds and bytes are those of the route that is taken.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tutti.collectives.base import Collective, Combine, Cost, add_up
from tutti.comm.base import Comm
from tutti.files import TEXT_LIMIT, read_json
from tutti.machine import count_cores, find_cache
from tutti.spec import Bytes, format_value, parse

CANDIDATES = ("butterfly", "star", "direct", "halving-doubling", "ring", "double-binary-tree")
SIZES = tuple(2**10 * 4**k for k in range(8))  # 1 KiB to 16 MiB
_SECONDS, _EACH = 4.0, 0.2  # that the measurement may take, more or less, and either half of it at one length
_LEAST_TURNS, _MOST_TURNS = 4, 60  # in the first half at least, and in either at most
_MUCH = 1.5  # times as long as the best: it leaves at half-time
_UNTRIED = "ring"  # for long buffers, without a measurement
_SHORT = 2**15  # bytes; what counts as short without a measurement
_LONG = 2**20  # bytes; from here on what has left is not tried again, and what holds for less says nothing

_INCOMPLETE = "incomplete"  # stands in the cache beside the lengths of a table that lacks some

Table = dict[int, str]  # length of the buffer -> route


@dataclass
class Auto(Collective):
    _routes: list[tuple[int, Collective]] = field(init=False, repr=False, compare=False, default_factory=list)
    _chosen: dict[int, Collective] = field(init=False, repr=False, compare=False, default_factory=dict)
    _measured_on: str = field(init=False, repr=False, compare=False, default="")

    def prepare(self, comm: Comm) -> None:
        place = _describe(comm)
        if comm.wire == "threads" or comm.size == 1 or place == self._measured_on:
            return
        known, complete = _recall(comm, place)
        table = known if complete else _measure(comm, place, known)
        if max(table) < _LONG:
            table[_LONG] = _UNTRIED  # what is best for short ones may be the worst for these
        self._routes = [(nbytes, parse(name, Collective)) for nbytes, name in sorted(table.items())]
        self._measured_on = place
        self._chosen.clear()

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        nbytes = buffer.nbytes
        route = self._chosen.get(nbytes)  # a few microseconds, which count where workers share processors
        if route is None:
            route = self._chosen[nbytes] = self.choose(nbytes)
        route.run(comm, buffer, tag)

    def choose(self, nbytes: int) -> Collective:
        """The route for a buffer of so many bytes: that of the nearest length that was tried."""
        if not self._routes:
            return parse("butterfly" if nbytes <= _SHORT else _UNTRIED, Collective)
        return min(self._routes, key=lambda pair: max(pair[0], nbytes) / max(1, min(pair[0], nbytes)))[1]

    def choices(self) -> dict[str, str]:
        """As ranges: a route holds from halfway between the lengths that were tried, on the scale of powers."""
        if not self._routes:
            return {}
        spans = [(str(route), nbytes) for nbytes, route in self._routes]
        last = [span for span, after in zip(spans, [*spans[1:], ("", 0)], strict=True) if span[0] != after[0]]
        ends = [f"{name} up to {format_value(2 * nbytes, Bytes)}" for name, nbytes in last[:-1]]
        return {"route": ", ".join([*ends, f"{last[-1][0]} above" if ends else last[-1][0]])}

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if operation != "all-reduce":
            raise self.lacks(operation)
        return self.choose(nbytes).cost(size, nbytes)


# --- measuring -------------------------------------------------------------------------------------------------------


def _measure(comm: Comm, place: str, known: Table) -> Table:
    """The fastest candidate for every length there is time for, the known one for others; the same on all workers."""
    routes = {name: parse(name, Collective) for name in CANDIDATES}
    for route in routes.values():
        route.prepare(comm)
    table: Table = {}
    left = _SECONDS
    for nbytes in SIZES:
        seconds, took = _time(comm, routes, nbytes)
        table[nbytes] = min(seconds, key=lambda name: seconds[name])
        if nbytes >= _LONG:
            routes = {name: routes[name] for name in seconds}
        left -= took
        if left < max(0.0, 4 * took - 6 * _EACH):  # what fills its time now takes four times as long at the next
            break
    table = {**known, **table}
    _remember(comm, place, table)
    return table


def _time(comm: Comm, routes: dict[str, Collective], nbytes: int) -> tuple[dict[str, float], float]:
    """The median seconds of the routes that were not much slower than the best, and what measuring them takes: where
    the machine stood still meanwhile, without that."""
    everybody = list(routes.values())
    warm_up = _take_turns(comm, everybody, nbytes, 2)[1]
    first = _take_turns(comm, everybody, nbytes, max(_LEAST_TURNS, _count_turns(warm_up)))
    medians = first.median(dim=0).values
    is_near = medians <= _MUCH * medians.min()
    near = [name for name, stays in zip(routes, is_near.tolist(), strict=True) if stays]
    last = _take_turns(comm, [routes[name] for name in near], nbytes, max(1, _count_turns(medians[is_near])))
    seconds = torch.cat([first[:, is_near], last]).median(dim=0).values
    took = (2 + len(first)) * medians.sum() + len(last) * seconds.sum()
    return dict(zip(near, seconds.tolist(), strict=True)), float(took)


def _count_turns(turn: Tensor) -> int:
    """How many like this one fit into the time, which is the same for all workers."""
    return min(_MOST_TURNS, int(_EACH / turn.sum()))


def _take_turns(comm: Comm, routes: list[Collective], nbytes: int, turns: int) -> Tensor:
    """So many rows with the seconds of every route at the slowest worker."""
    buffer, in_a_row = comm.zeros(nbytes // 4, torch.float32, torch.device("cpu")), max(1, min(16, 2**21 // nbytes))
    mine = torch.zeros(turns, len(routes), dtype=torch.float64)
    for turn, row in enumerate(mine):
        for place in range(len(routes)):
            index = (turn + place) % len(routes)  # nobody is always behind the same one
            comm.barrier()
            begun = comm.clock.now()
            for _ in range(in_a_row):
                routes[index].run(comm, buffer, "control/auto")
            row[index] = comm.clock.now() - begun
    everybodys = mine.new_empty((comm.size, *mine.shape))
    comm.all_gather(mine, everybodys, tag="control/auto")
    return everybodys.amax(dim=0)


# --- the cache -------------------------------------------------------------------------------------------------------


def _describe(comm: Comm) -> str:
    """What a measurement holds for: the machines of all workers, how many, and the wire between them."""
    mine = f"{platform.node()}, {count_cores()} cores"
    machines = sorted(machine.decode() for machine in comm.gather_bytes(mine.encode(), tag="control/auto"))
    counted = "; ".join(f"{machines.count(machine)} on {machine}" for machine in dict.fromkeys(machines))
    return f"{comm.wire}: {counted}"


def _file() -> Path:
    return find_cache() / "routes.json"


def _recall(comm: Comm, place: str) -> tuple[Table, bool]:
    """What worker 0 has in its cache, and whether every length was measured. A table that lacks some and does not say
    so is of an older version, which put in a route that it had not measured: nothing of it is kept."""
    text = b""
    if comm.rank == 0 and not comm.interface:
        text = json.dumps(_read().get(place, {})).encode()
    found = json.loads(comm.gather_bytes(text, tag="control/auto")[0] or b"{}")
    if not isinstance(found, dict):  # the cache is damaged
        return {}, False
    known = {key: name for key, name in found.items() if isinstance(name, str) and name in CANDIDATES}
    table = {int(nbytes): name for nbytes, name in known.items() if nbytes in map(str, SIZES)}
    complete = set(SIZES) <= table.keys()
    return table if complete or _INCOMPLETE in found else {}, complete


def _remember(comm: Comm, place: str, table: Table) -> None:
    """In worker 0's cache, where it can be written."""
    if comm.rank != 0 or comm.interface:
        return
    marked: dict[Any, str] = {**table}
    if not set(SIZES) <= table.keys():
        marked = {_INCOMPLETE: "measured again by the next run", **table}
    path = _file()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            draft.write_text(json.dumps({**_read(), place: marked}, indent=2))
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)


def _read() -> dict[str, dict[str, str]]:
    try:
        found = read_json(_file(), TEXT_LIMIT)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
