"""What follows from a topology's peers: links, mixing matrices, delays, diameter and spectral gap.

All matrices are numpy's and small: one row and one column per worker. `matrix[i, j]` always concerns what worker i has
of worker j's; only `links[i, j]` says that i sends to j.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tutti.errors import UserError
from tutti.topologies.base import Topology

Rule = Literal["metropolis", "uniform", "lazy"]
Matrix = NDArray[np.float64]
_ROUNDING = 1e-12  # what may be left of a number that is zero, or of a sum that is one


def find_links(topology: Topology, size: int, step: int = 0, part: int = 0) -> NDArray[np.bool_]:
    """Whether worker i sends to worker j, for all of them."""
    topology.check(size)
    links = np.zeros((size, size), dtype=bool)
    for rank in range(size):
        links[rank, topology.peers(rank, size, step, part)] = True
    return links


# --- mixing ----------------------------------------------------------------------------------------------------------


def make_mixing(topology: Topology, size: int, step: int = 0, part: int = 0, rule: Rule = "metropolis") -> Matrix:
    """The weights by which gossip averages: worker i takes matrix[i, j] of worker j's value.

        metropolis  1 / (1 + the larger of both degrees), and what is left for the worker's own value
        uniform     1 / (1 + the sender's degree), also for the worker's own value
        lazy        half of metropolis, and a half more for the worker's own value: no eigenvalue is below 0

    Rows and columns add up to 1, so that the mean is kept, and links in both directions have the same weight; a rule
    that cannot give this is refused. Where all degrees are equal, both rules give the same.
    """
    links = find_links(topology, size, step, part)
    degrees = links.sum(axis=1)
    if rule == "uniform":
        matrix = np.where(links.T | np.eye(size, dtype=bool), 1 / (1 + degrees), 0.0)
    else:
        matrix = np.where(links.T, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
        np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
    if rule == "lazy":
        matrix = (np.eye(size) + matrix) / 2
    if not is_doubly_stochastic(matrix):
        _refuse(topology, size, rule, degrees)
    return matrix


def is_doubly_stochastic(matrix: Matrix) -> bool:
    """Whether averaging by it keeps the mean and leaves equal values equal."""
    sums = np.concatenate([matrix.sum(axis=0), matrix.sum(axis=1)])
    return bool((matrix > -_ROUNDING).all() and np.allclose(sums, 1, rtol=0, atol=_ROUNDING))


def _refuse(topology: Topology, size: int, rule: Rule, degrees: NDArray[np.int64]) -> None:
    advice = "a topology with as many links in as out" if topology.directed else "the metropolis rule"
    raise UserError(
        f"{rule} weights on '{topology}' over {size} workers would not keep the mean, since degrees go from "
        f"{degrees.min()} to {degrees.max()}; take {advice}"
    )


def find_spectral_gap(
    topology: Topology, size: int, step: int = 0, part: int = 0, rule: Rule = "metropolis"
) -> tuple[float, float]:
    """1 - the second largest |eigenvalue| of the mixing matrix, over one period and per step; they differ only where
    the topology changes. After one period at most 1 - gap of a disagreement is left.

    It is taken as a singular value, which is the same for all matrices that commute with their transpose, and for
    products of random ones still says how much is left.
    """
    period = topology.period(size)
    steps = [make_mixing(topology, size, step + at, part, rule) for at in range(period)]
    product = reduce(lambda before, after: after @ before, steps)
    left = float(np.linalg.norm(product - 1 / size, ord=2))
    left = 0.0 if left < _ROUNDING else min(1.0, left)
    return 1 - left, 1 - left ** (1 / period)


# --- ways ------------------------------------------------------------------------------------------------------------


def find_delays(topology: Topology, size: int, step: int = 0, part: int = 0) -> Matrix:
    """After how many rounds worker j's message is at worker i if everybody passes on all it knows; inf for never."""
    delays = np.where(np.eye(size, dtype=bool), 0.0, math.inf)
    knows = np.packbits(delays == 0, axis=1)  # eight messages in a byte: a complete graph has many links
    senders, starts = _find_ways(topology, size, step, part)
    rounds, idle = 0, 0
    while np.isinf(delays).any() and idle < topology.period(size):
        if topology.changing:
            senders, starts = _find_ways(topology, size, step + rounds, part)
        rounds += 1
        after = np.bitwise_or.reduceat(knows[senders], starts, axis=0)
        news = np.unpackbits(after & ~knows, axis=1, count=size).astype(bool)
        delays[news] = rounds
        knows, idle = after, 0 if news.any() else idle + 1
    return delays


def _find_ways(topology: Topology, size: int, step: int, part: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Who sends to worker 0, to worker 1 and so on, everybody to itself as well, and where each of these begins."""
    links = find_links(topology, size, step, part)
    receivers, senders = np.nonzero(links.T | np.eye(size, dtype=bool))
    return senders, np.searchsorted(receivers, np.arange(size))


def find_diameter(topology: Topology, size: int, step: int = 0) -> float:
    """The longest of all delays, in the slowest part; inf where somebody is never reached."""
    return max(float(find_delays(topology, size, step, part).max()) for part in range(topology.parts))
