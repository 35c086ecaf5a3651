"""The figures of a topology over so many workers, as `tutti topology` shows them.

Where a topology has several parts, links and degrees are those of all parts together, and delays and spectral gap those
of the slowest one. Where it changes from step to step, links and degrees are those of one step.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tutti.errors import UserError
from tutti.graph import Rule, find_delays, find_links, find_spectral_gap, make_mixing
from tutti.lab.units import format_number
from tutti.spec import names, parse
from tutti.topologies.base import Topology


@dataclass(frozen=True)
class TopologyFigures:
    spec: str
    workers: int
    step: int
    rule: Rule
    parts: int
    directed: bool
    changing: bool
    period: int
    links: int  # a link in both directions counts once
    least_degree: int
    most_degree: int
    connected: bool
    diameter: float
    mean_delay: float  # between two different workers
    spectral_gap: float  # over one period
    gap_per_step: float


def measure(topology: Topology, workers: int, rule: Rule = "metropolis", step: int = 0) -> TopologyFigures:
    parts = range(topology.parts)
    links = [find_links(topology, workers, step, part) for part in parts]
    degrees = np.sum(links, axis=(0, 2))
    delays = [find_delays(topology, workers, step, part) for part in parts]
    gaps = [find_spectral_gap(topology, workers, step, part, rule) for part in parts]
    return TopologyFigures(
        spec=str(topology),
        workers=workers,
        step=step,
        rule=rule,
        parts=topology.parts,
        directed=topology.directed,
        changing=topology.changing,
        period=topology.period(workers),
        links=int(np.sum(links)) // (1 if topology.directed else 2),
        least_degree=int(degrees.min()),
        most_degree=int(degrees.max()),
        connected=bool(np.isfinite(delays).all()),
        diameter=float(np.max(delays)),
        mean_delay=float(max(each.sum() for each in delays)) / max(1, workers * (workers - 1)),
        spectral_gap=min(gap for gap, _ in gaps),
        gap_per_step=min(gap for _, gap in gaps),
    )


def find_equals(topology: Topology, workers: int) -> list[str]:
    """What else has the same links over so many workers, as a torus of one row and a ring. Of two or fewer nothing is
    said, nor of what changes; what is drawn at random has the same links by chance and is not named."""
    if workers < 3 or not _is_fixed(topology):
        return []
    links = find_links(topology, workers)
    others = [parse(name, Topology) for name in names("topologies") if name != topology.name]
    return [each.name for each in others if _is_fixed(each) and _has_links(each, workers, links)]


def _is_fixed(topology: Topology) -> bool:
    return topology.parts == 1 and not topology.changing and not hasattr(topology, "seed")


def _has_links(topology: Topology, workers: int, links: NDArray[np.bool_]) -> bool:
    try:
        return np.array_equal(find_links(topology, workers), links)
    except UserError:  # there is none over so many
        return False


def measure_all(workers: int, rule: Rule = "metropolis", step: int = 0) -> tuple[list[TopologyFigures], list[str]]:
    """The figures of every topology there is, and a sentence for each that has none over so many workers."""
    found, refused = [], []
    for name in names("topologies"):
        try:
            found.append(measure(parse(name, Topology), workers, rule, step))
        except UserError as error:
            refused.append(str(error))
    return found, refused


def as_json(figures: TopologyFigures) -> dict[str, Any]:
    """For a program; what never comes is null."""
    return {key: None if value == math.inf else value for key, value in asdict(figures).items()}


def list_graphs(topology: Topology, figures: TopologyFigures) -> list[dict[str, Any]]:
    """Everybody's peers and the mixing matrix, of every part."""
    workers, step = figures.workers, figures.step
    return [
        {
            "peers": [topology.peers(rank, workers, step, part) for rank in range(workers)],
            "mixing": make_mixing(topology, workers, step, part, figures.rule).tolist(),
        }
        for part in range(topology.parts)
    ]


def describe(each: TopologyFigures) -> str:
    """The figures in one line."""
    parts = [
        f"{each.links} link{'' if each.links == 1 else 's'}",
        f"degree {format_degree(each)}",
        f"diameter {format_rounds(each.diameter)}",
        f"mean delay {format_rounds(each.mean_delay, 2)}",
        f"spectral gap {format_gap(each)}" + (f" over {each.period} steps (per step)" if each.changing else ""),
    ]
    return " · ".join(parts)


def format_degree(each: TopologyFigures) -> str:
    return "–".join(dict.fromkeys((str(each.least_degree), str(each.most_degree))))


def format_rounds(rounds: float, decimals: int = 0) -> str:
    return f"{rounds:.{decimals}f}" if math.isfinite(rounds) else "never"


def format_gap(each: TopologyFigures) -> str:
    per_step = f" ({format_number(each.gap_per_step)})" if each.changing else ""
    return f"{format_number(each.spectral_gap)}{per_step}"


def count_workers(workers: int) -> str:
    return f"{workers} worker" + ("" if workers == 1 else "s")
