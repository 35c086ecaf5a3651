"""Routes by the names that people type, and what any route must at least do for an operation.

The least bytes are those of the best algorithm that there can be over links that send and receive at once; over equal
links they are also nccl-tests' factor from algorithm to bus bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tutti.collectives.base import OPERATIONS, Collective
from tutti.errors import UserError, suggest
from tutti.lab.labels import join
from tutti.spec import names, parse, presets_of

ALL: Final = "all"
_LAST = ("auto", "native")  # one is a choice among the others, one is the backend's


@dataclass(frozen=True)
class Route:
    """A route and its name as typed."""

    name: str
    collective: Collective

    @property
    def own(self) -> bool:
        """Neither the backend's nor a choice among the others."""
        return self.collective.name not in _LAST

    def offers(self, operation: str) -> bool:
        return operation in self.collective.operations


# --- which there are -------------------------------------------------------------------------------------------------


def find_operation(name: str) -> str:
    if name not in OPERATIONS:
        raise UserError(f"there is no operation '{name}'{suggest(name, list(OPERATIONS))}")
    return name


def find_operations(asked: Sequence[str]) -> list[str]:
    """Those asked for, or all; each once."""
    return list(OPERATIONS) if ALL in asked else [find_operation(name) for name in dict.fromkeys(asked)]


def find_routes(operation: str, asked: Sequence[str]) -> list[Route]:
    """All that offer the operation, or those asked for, which must."""
    routes = read_routes(asked)
    for route in routes:
        if not route.offers(operation) and ALL not in asked:
            raise UserError(
                f"'{route.name}' has no {operation}, only {join(list(route.collective.operations))}; "
                f"{operation} is offered by {join([each.name for each in find_routes(operation, [ALL])])}"
            )
    return [route for route in routes if route.offers(operation)]


def read_routes(asked: Sequence[str]) -> list[Route]:
    """Those asked for, or all there are; each once, under the first of its names."""
    routes = _all_routes() if ALL in asked else [Route(name, parse(name, Collective)) for name in asked]
    first: dict[str, Route] = {}
    for route in routes:
        first.setdefault(str(route.collective), route)
    return list(first.values())


def _all_routes() -> list[Route]:
    found = [*names("collectives"), *presets_of("collectives")]
    ordered = sorted(found, key=lambda name: (name in _LAST, name in presets_of("collectives"), name))
    return [Route(name, parse(name, Collective)) for name in ordered]


# --- what they must at least do --------------------------------------------------------------------------------------


def bus_factor(operation: str, workers: int) -> float:
    """Bus over algorithm bandwidth as nccl-tests defines it; a size is the whole buffer's, never one piece's."""
    if operation in ("reduce", "broadcast"):
        return 1.0
    return (2 if operation == "all-reduce" else 1) * (workers - 1) / workers


def least_total(operation: str, workers: int) -> float:
    """Bytes that all workers together must send, as a multiple of the buffer's."""
    if operation in ("gather", "scatter"):
        return (workers - 1) / workers
    return (2 if operation == "all-reduce" else 1) * float(workers - 1)


def least_of_worker(operation: str, workers: int, root: bool) -> float:
    """Bytes that must pass one worker's link in its busier direction, whatever passes the others'."""
    if workers == 1:
        return 0.0
    if operation in ("gather", "scatter") and not root:
        return 1 / workers
    return 1.0 if operation in ("all-reduce", "reduce", "broadcast") else (workers - 1) / workers


def least_seconds(operation: str, nbytes: float, rates: Sequence[float], latency: float = 0.0) -> float:
    """No algorithm is faster over links of these bytes per second, one per worker; worker 0 is the root.

    Every link must carry its worker's least, and all links together what an all-reduce sends in all; the last byte is
    one latency on its way.
    """
    workers = len(rates)
    if workers == 1:
        return 0.0
    single = max(least_of_worker(operation, workers, rank == 0) / rate for rank, rate in enumerate(rates))
    together = least_total(operation, workers) / sum(rates)
    return latency + nbytes * max(single, together)
