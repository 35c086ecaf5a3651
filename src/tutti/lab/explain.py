"""What every route takes for an operation in the α–β model, and where each wins: from the routes' own cost functions.

    time = rounds * α + path / β

α is a link's latency, β its bandwidth, the path the bytes that pass one after another. Nothing is run: the tests hold
rounds and bytes of these functions against what the routes really send.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tutti.collectives.base import Cost
from tutti.lab.routes import Route, least_seconds

SWEEP = (2**10, 2**30)  # bytes between which winners are looked for
_PER_OCTAVE = 4  # sizes that are tried first
_EXACT = 1e-3  # how exactly a change of winner is found, as a share of its size
_MANY = 64  # workers, on whom it shows which routes need ever more rounds
_EQUAL = 1e-9  # times that differ less are the same


@dataclass(frozen=True)
class Links:
    """What joins the workers: every one has a link of this latency (seconds) and bandwidth (bytes per second)."""

    workers: int
    latency: float
    bandwidth: float

    @property
    def worth(self) -> float:
        """Bytes that a link sends during one latency."""
        return self.latency * self.bandwidth


@dataclass(frozen=True)
class Estimate:
    """A route's cost, and its time over these links."""

    route: Route
    cost: Cost
    seconds: float
    utilisation: float  # share of the time that the busiest link is busy


@dataclass(frozen=True)
class Span:
    """From this size to that, both in bytes, these routes win; several where they take equally long."""

    routes: tuple[str, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Explanation:
    operation: str
    nbytes: int
    links: Links
    estimates: list[Estimate]  # the fastest first
    spans: list[Span]
    spans_of_few: list[Span]  # without the routes that talk to everybody at once; empty where that makes no difference

    @property
    def best(self) -> float:
        return self.estimates[0].seconds

    @property
    def floor(self) -> float:
        """No algorithm is faster over these links."""
        return find_floor(self.operation, self.nbytes, self.links)

    @property
    def published(self) -> float | None:
        """Document 003's time of an all-reduce."""
        return document_003(self.nbytes, self.links) if self.operation == "all-reduce" else None


def explain(operation: str, routes: Sequence[Route], nbytes: int, links: Links) -> Explanation:
    estimates = sorted((estimate(route, operation, nbytes, links) for route in routes), key=lambda each: each.seconds)
    few = [route for route in routes if route.own and not crowds(route, operation)]
    return Explanation(
        operation,
        nbytes,
        links,
        estimates,
        find_spans(operation, routes, nbytes, links),
        find_spans(operation, few, nbytes, links) if 0 < len(few) < sum(route.own for route in routes) else [],
    )


def estimate(route: Route, operation: str, nbytes: int, links: Links) -> Estimate:
    cost = route.collective.cost(links.workers, nbytes, operation)
    seconds = cost.seconds(links.latency, links.bandwidth)
    return Estimate(route, cost, seconds, cost.busiest / links.bandwidth / seconds)


def find_floor(operation: str, nbytes: float, links: Links) -> float:
    return least_seconds(operation, nbytes, [links.bandwidth] * links.workers, links.latency)


def document_003(nbytes: float, links: Links) -> float:
    """(bytes / bandwidth) * log2(P): the whole buffer goes up a binomial tree, once, and latency is nothing."""
    return nbytes / links.bandwidth * math.log2(links.workers)


def crowds(route: Route, operation: str) -> bool:
    """Whether a worker talks to many in one round: in r rounds with one message each, 2^r workers can meet at most."""
    try:
        return route.collective.cost(_MANY, _MANY, operation).rounds < math.log2(_MANY)
    except ValueError:  # made for another number of workers
        return False


# --- where each wins -------------------------------------------------------------------------------------------------


def find_spans(operation: str, routes: Sequence[Route], nbytes: int, links: Links) -> list[Span]:
    """Who wins at which size; the size asked for is always among them."""
    contest = _Contest(operation, [route for route in routes if route.own] or list(routes), links)
    least, most = min(SWEEP[0], nbytes), max(SWEEP[1], nbytes)
    changes = [least]
    sizes = sweep_sizes(least, most)
    for low, high in pairwise(sizes):
        changes += contest.changes(low, high)
    ends = [*(change - 1 for change in changes[1:]), most]
    return [Span(contest.winners(begin), begin, end) for begin, end in zip(changes, ends, strict=True)]


def sweep_sizes(least: int, most: int) -> list[int]:
    """Evenly on a logarithmic axis, both ends included."""
    count = max(1, round(_PER_OCTAVE * math.log2(most / least)))
    return sorted({round(least * (most / least) ** (step / count)) for step in range(count + 1)})


class _Contest:
    """Routes over the same links; whoever wins at a size is asked more than once."""

    def __init__(self, operation: str, routes: Sequence[Route], links: Links) -> None:
        self._operation, self._routes, self._links = operation, routes, links
        self._known: dict[int, tuple[str, ...]] = {}

    def winners(self, nbytes: int) -> tuple[str, ...]:
        if nbytes not in self._known:
            times = {r.name: estimate(r, self._operation, nbytes, self._links).seconds for r in self._routes}
            best = min(times.values())
            self._known[nbytes] = tuple(name for name, time in times.items() if time <= best * (1 + _EQUAL))
        return self._known[nbytes]

    def changes(self, low: int, high: int) -> list[int]:
        """The sizes above `low` and up to `high` at which others win than just below."""
        if self.winners(low) == self.winners(high):
            return []
        if high - low <= max(1, _EXACT * low):
            return [high]
        middle = (low + high) // 2
        return self.changes(low, middle) + self.changes(middle, high)


# --- for a program ---------------------------------------------------------------------------------------------------


def make_json(explanation: Explanation) -> dict[str, Any]:
    links, published = explanation.links, explanation.published
    return {
        "op": explanation.operation,
        "workers": links.workers,
        "bytes": explanation.nbytes,
        "latency": links.latency,
        "bandwidth": links.bandwidth,
        "floor": explanation.floor,
        "routes": [_make_row(each, explanation.best) for each in explanation.estimates],
        "wins": [_make_span(span) for span in explanation.spans],
        "wins_of_few": [_make_span(span) for span in explanation.spans_of_few],
        "document_003": published and {"formula": "bytes / bandwidth * log2(workers)", "seconds": published},
    }


def _make_span(span: Span) -> dict[str, Any]:
    return {"routes": list(span.routes), "from": span.begin, "to": span.end}


def _make_row(each: Estimate, best: float) -> dict[str, Any]:
    return {
        "route": each.route.name,
        "spec": str(each.route.collective),
        "rounds": each.cost.rounds,
        "busiest": each.cost.busiest,
        "total": each.cost.total,
        "path": each.cost.path,
        "seconds": each.seconds,
        "utilisation": each.utilisation,
        "times_best": each.seconds / best,
    }
