"""The figures of a topology, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from tutti.lab.topology_figures import (
    as_json,
    count_workers,
    describe,
    find_equals,
    format_degree,
    list_graphs,
    measure,
    measure_all,
)
from tutti.spec import names, parse
from tutti.topologies.base import Topology


@dataclass
class Pieces(Topology):
    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return [rank ^ 1]


def named(spec: str) -> Topology:
    return parse(spec, Topology)


def test_a_ring() -> None:
    each = measure(named("ring"), 5)
    assert (each.links, each.least_degree, each.most_degree, each.diameter) == (5, 2, 2, 2)
    assert each.mean_delay == pytest.approx(1.5)  # two at one hop, two at two
    assert each.connected


def test_links_and_degrees_are_those_of_all_parts() -> None:
    each = measure(named("double-binary-tree"), 8)
    assert (each.parts, each.links) == (2, 14)
    assert (each.least_degree, each.most_degree) == (3, 4)
    assert format_degree(each) == "3–4"


def test_one_way_links_are_counted_one_by_one() -> None:
    assert measure(named("exponential"), 8).links == 24
    assert measure(named("hypercube"), 8).links == 12


def test_of_a_changing_topology_one_step_is_counted() -> None:
    each = measure(named("random-pairing"), 7, step=4)
    assert (each.links, each.least_degree, each.most_degree) == (3, 0, 1)
    assert each.period > 1
    assert each.gap_per_step < each.spectral_gap


def test_pieces_are_never_agreed() -> None:
    each = measure(Pieces(), 4)
    assert not each.connected
    assert "diameter never · mean delay never · spectral gap 0" in describe(each)
    assert as_json(each)["diameter"] is None
    json.dumps(as_json(each), allow_nan=False)


def test_all_of_them_with_those_that_do_not_work() -> None:
    found, refused = measure_all(6)
    assert len(found) + len(refused) == len(names("topologies"))
    assert any("power of two" in sentence for sentence in refused)
    found, refused = measure_all(8, rule="uniform")
    assert {each.spec for each in found} >= {"ring", "complete", "torus"}
    assert any("'chain' over 8 workers would not keep the mean" in sentence for sentence in refused)


@pytest.mark.parametrize(
    ("spec", "workers", "equals"),
    [
        ("torus", 7, ["ring"]),
        ("torus", 8, []),
        ("ring", 2, []),
        ("edge-list(0-1-2)", 3, ["chain"]),
        ("random-regular", 6, []),
        ("one-peer-exponential", 4, []),
    ],
)
def test_what_has_the_same_links(spec: str, workers: int, equals: list[str]) -> None:
    assert find_equals(parse(spec, Topology), workers) == equals


def test_one_line() -> None:
    assert (
        describe(measure(named("chain"), 2)) == "1 link · degree 1 · diameter 1 · mean delay 1.00 · spectral gap 1.00"
    )
    assert "gap 1.00 (1.00) over 3 steps (per step)" in describe(measure(named("one-peer-exponential"), 8))
    assert format_degree(replace(measure(named("ring"), 4), most_degree=5)) == "2–5"
    assert [count_workers(n) for n in (1, 2)] == ["1 worker", "2 workers"]


def test_graphs_for_a_program() -> None:
    first, second = list_graphs(named("double-binary-tree"), measure(named("double-binary-tree"), 3))
    assert first["peers"] == [[1], [0, 2], [1]]
    assert second["peers"] == [[2], [2], [0, 1]]
    assert first["mixing"][0] == pytest.approx([2 / 3, 1 / 3, 0])
