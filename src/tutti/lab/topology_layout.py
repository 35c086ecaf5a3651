"""Where the workers of a topology stand in a drawing: trees in levels, chains in lines, tori on a grid, cubes as cubes,
and everything else on a circle.

Points are (x, y), x to the right and y upwards, in any scale but with equal units in both directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tutti.graph import find_links
from tutti.lab.topology_spread import is_tree
from tutti.topologies.base import Topology, find_parents
from tutti.topologies.torus import Torus

Point = tuple[float, float]
Link = tuple[int, int]
_ROW = 12  # so many workers of a chain stand in one line
_CUBE = ((1.0, 0.0), (0.0, 1.0), (0.42, 0.34), (1.9, -0.5))  # where each further bit leads


@dataclass(frozen=True)
class Layout:
    points: list[Point]
    links: list[Link]  # one for both directions, unless links are one-way
    wraps: frozenset[Link] = frozenset()  # links that run round the back of a grid
    tree: bool = False


def lay_out(topology: Topology, workers: int, step: int = 0, part: int = 0) -> Layout:
    links = _list_links(topology, workers, step, part)
    if is_tree(topology, workers):
        return Layout(_place_tree(find_parents(topology, workers, part)), links, tree=True)
    if isinstance(topology, Torus) and min(shape := topology.shape(workers)) > 1:
        return Layout(_place_grid(*shape), links, _find_wraps(links, shape[1]))
    if topology.name == "hypercube" and workers <= 16:
        return Layout([_place_corner(worker) for worker in range(workers)], links)
    return Layout(_place_circle(workers), links)


def _list_links(topology: Topology, workers: int, step: int, part: int) -> list[Link]:
    pairs = np.argwhere(find_links(topology, workers, step, part)).tolist()
    return [(one, other) for one, other in pairs if topology.directed or one < other]


# --- trees -----------------------------------------------------------------------------------------------------------


def find_children(parents: list[int]) -> dict[int, list[int]]:
    """Everybody's children in rising order; the root is the child of -1."""
    children: dict[int, list[int]] = {worker: [] for worker in range(-1, len(parents))}
    for worker, parent in enumerate(parents):
        children[parent].append(worker)
    return children


def is_line(parents: list[int]) -> bool:
    """Whether the tree has one branch only."""
    return all(len(below) <= 1 for below in find_children(parents).values())


def is_star(parents: list[int]) -> bool:
    """Whether all hang on the root, and are too many to stand in a row below it."""
    return len(parents) > 6 and parents.count(parents.index(-1)) == len(parents) - 1


def walk_down(parents: list[int]) -> list[tuple[int, int]]:
    """Every worker with its level, each before its children and branch by branch."""
    children = find_children(parents)
    walked, waiting = [], [(parents.index(-1), 0)]
    while waiting:
        worker, level = waiting.pop()
        walked.append((worker, level))
        waiting += [(child, level + 1) for child in reversed(children[worker])]
    return walked


def _place_tree(parents: list[int]) -> list[Point]:
    if is_line(parents):
        return _place_line([worker for worker, _ in walk_down(parents)])
    if is_star(parents):
        root = parents.index(-1)
        around = iter(_place_circle(len(parents) - 1))
        return [(0.0, 0.0) if worker == root else next(around) for worker in range(len(parents))]
    return _place_levels(parents)


def _place_line(order: list[int]) -> list[Point]:
    """From left to right, and back again in the line below."""
    points: dict[int, Point] = {}
    for place, worker in enumerate(order):
        row, column = divmod(place, _ROW)
        points[worker] = (float(column if row % 2 == 0 else _ROW - 1 - column), -1.2 * row)
    return [points[worker] for worker in range(len(order))]


def _place_levels(parents: list[int]) -> list[Point]:
    """Leaves side by side, everybody else above the middle of its children."""
    children, walked = find_children(parents), walk_down(parents)
    leaves = [worker for worker, _ in walked if not children[worker]]
    across = {leaf: float(place) for place, leaf in enumerate(leaves)}
    for worker, _ in reversed(walked):
        if children[worker]:
            across[worker] = (across[children[worker][0]] + across[children[worker][-1]]) / 2
    deepest = max(level for _, level in walked)
    height = max(1.0, 0.6 * len(leaves) / max(1, deepest))
    levels = dict(walked)
    return [(across[worker], -height * levels[worker]) for worker in range(len(parents))]


# --- circles, grids, cubes -------------------------------------------------------------------------------------------


def _place_circle(count: int) -> list[Point]:
    """Clockwise from the top."""
    angles = [2 * math.pi * place / count for place in range(count)]
    return [(math.sin(angle), math.cos(angle)) for angle in angles] if count > 1 else [(0.0, 0.0)]


def _place_grid(rows: int, columns: int) -> list[Point]:
    return [(float(column), float(-row)) for row in range(rows) for column in range(columns)]


def _find_wraps(links: list[Link], columns: int) -> frozenset[Link]:
    places = {worker: divmod(worker, columns) for link in links for worker in link}
    return frozenset((a, b) for a, b in links if max(abs(x - y) for x, y in zip(places[a], places[b], strict=True)) > 1)


def _place_corner(worker: int) -> Point:
    """A corner of a cube in up to four dimensions, seen from the side."""
    moves = [move for bit, move in enumerate(_CUBE) if worker >> bit & 1]
    return sum(x for x, _ in moves), sum(y for _, y in moves)
