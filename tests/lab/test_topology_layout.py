"""Nobody stands on anybody else, and every kind of graph has its own look."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
from catalogue import every

from tutti.errors import UserError
from tutti.graph import find_links
from tutti.lab.topology_layout import find_children, is_line, is_star, lay_out, walk_down
from tutti.spec import parse
from tutti.topologies.base import Topology


def named(spec: str) -> Topology:
    return parse(spec, Topology)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8, 13, 16, 32])
@pytest.mark.parametrize("spec", every(Topology))
def test_everybody_has_a_place_of_its_own(spec: str, workers: int) -> None:
    topology = named(spec)
    try:
        topology.check(workers)
    except UserError:
        workers = 2 if spec == "edge-list" else 16
    for part in range(topology.parts):
        layout = lay_out(topology, workers, part=part)
        assert len(layout.points) == workers
        assert min((math.dist(*two) for two in combinations(layout.points, 2)), default=1) > 0.05
        directions = 1 if topology.directed else 2
        assert len(layout.links) * directions == find_links(topology, workers, part=part).sum()


def test_a_tree_stands_in_levels_with_parents_above_the_middle() -> None:
    layout = lay_out(named("binary-tree"), 7)
    assert layout.tree
    heights = [y for _, y in layout.points]
    assert heights[0] > heights[1] == heights[2] > heights[3] == heights[6]
    assert layout.points[1][0] == (layout.points[3][0] + layout.points[4][0]) / 2


def test_a_chain_is_a_line_that_turns() -> None:
    points = lay_out(named("chain"), 30).points
    assert all(math.dist(one, other) == pytest.approx(1, abs=0.21) for one, other in pairwise(points))
    assert len({y for _, y in points}) == 3


def test_a_star_has_its_centre_in_the_middle() -> None:
    centre, *others = lay_out(named("star"), 9).points
    assert centre == (0, 0)
    assert [math.hypot(*point) for point in others] == pytest.approx([1] * 8)


def test_a_torus_is_a_grid_and_knows_what_runs_round_its_back() -> None:
    layout = lay_out(named("torus"), 12)
    assert layout.points[5] == (1, -1)
    assert layout.wraps == {(0, 3), (4, 7), (8, 11), (0, 8), (1, 9), (2, 10), (3, 11)}
    assert not lay_out(named("torus"), 7).wraps  # a ring


def test_edges_of_a_cube_that_point_the_same_way_are_parallel() -> None:
    points = lay_out(named("hypercube"), 16).points
    for bit in (1, 2, 4, 8):
        moves = {
            tuple(round(b - a, 9) for a, b in zip(points[n], points[n | bit], strict=True))
            for n in range(16)
            if not n & bit
        }
        assert len(moves) == 1


def test_a_circle_begins_at_the_top_and_goes_clockwise() -> None:
    points = lay_out(named("ring"), 4).points
    assert [(round(x), round(y)) for x, y in points] == [(0, 1), (1, 0), (0, -1), (-1, 0)]


def test_ways_through_a_tree() -> None:
    parents = [-1, 0, 0, 1, 1]
    assert find_children(parents) == {-1: [0], 0: [1, 2], 1: [3, 4], 2: [], 3: [], 4: []}
    assert walk_down(parents) == [(0, 0), (1, 1), (3, 2), (4, 2), (2, 1)]
    assert is_line([1, 2, -1])
    assert not is_line(parents)
    assert is_star([-1] + [0] * 6)
    assert not is_star([-1, 0, 0])
