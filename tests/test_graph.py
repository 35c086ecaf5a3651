"""What is derived from peers, held against closed forms and made-up graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from decentralised_oracle import LINKS, lazy

from tutti.errors import UserError
from tutti.graph import find_delays, find_diameter, find_links, find_spectral_gap, is_doubly_stochastic, make_mixing
from tutti.spec import parse
from tutti.topologies.base import Topology


def named(spec: str) -> Topology:
    return parse(spec, Topology)


@dataclass
class Pieces(Topology):
    """Two workers here, two there."""

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return [rank ^ 1]


@dataclass
class Funnel(Topology):
    """Everybody sends to worker 0, which sends to worker 1: in and out differ."""

    directed: ClassVar[bool] = True

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        return [1] if rank == 0 else [0]


def test_links_say_who_sends() -> None:
    assert find_links(Funnel(), 3).tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]]


def test_metropolis_weights_by_hand() -> None:
    """The larger degree of both ends decides, and what is left stays at home."""
    third, quarter = 1 / 3, 1 / 4
    expected = [
        [1 - third, third, 0, 0],
        [third, 1 - 2 * third, third, 0],
        [0, third, 1 - 2 * third, third],
        [0, 0, third, 1 - third],
    ]
    assert make_mixing(named("chain"), 4) == pytest.approx(np.array(expected))
    star = make_mixing(named("star"), 4)
    assert star[0] == pytest.approx([quarter] * 4)
    assert star[1] == pytest.approx([quarter, 1 - quarter, 0, 0])


@pytest.mark.parametrize("spec", ["ring", "complete", "torus", "hypercube", "random-regular", "exponential"])
def test_both_rules_are_one_where_degrees_are_equal(spec: str) -> None:
    uniform = make_mixing(named(spec), 16, rule="uniform")
    assert uniform == pytest.approx(make_mixing(named(spec), 16), abs=1e-15)
    assert set(np.round(uniform[uniform > 0], 12)) == {round(1 / (1 + int(find_links(named(spec), 16)[0].sum())), 12)}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("spec", LINKS)
def test_lazy_weights_are_half_of_metropolis(spec: str, size: int) -> None:
    """And no eigenvalue is below zero, on any graph: what needs that can have it."""
    matrix = make_mixing(named(spec), size, rule="lazy")
    assert matrix == pytest.approx(lazy(size, LINKS[spec](size)), abs=1e-15)
    assert np.linalg.eigvalsh(matrix).min() > -1e-12
    assert matrix.diagonal().min() >= 1 / 2


def test_lazy_weights_of_one_way_links_keep_the_mean() -> None:
    matrix = make_mixing(named("exponential"), 5, rule="lazy")
    assert is_doubly_stochastic(matrix)
    assert matrix == pytest.approx((np.eye(5) + make_mixing(named("exponential"), 5)) / 2)


def test_one_peer_takes_one_half_each() -> None:
    """x_i⁺ = (x_i + x_(i - 2^t)) / 2."""
    matrix = make_mixing(named("one-peer-exponential"), 8, step=1)
    x = np.arange(8.0)
    assert matrix @ x == pytest.approx((x + np.roll(x, 2)) / 2)


@pytest.mark.parametrize("spec", ["chain", "star", "binary-tree", "double-binary-tree"])
def test_uniform_weights_need_equal_degrees(spec: str) -> None:
    with pytest.raises(UserError, match=r"would not keep the mean, since degrees go from 1 to \d; take the metropolis"):
        make_mixing(named(spec), 8, rule="uniform")


def test_one_way_links_must_be_balanced() -> None:
    for rule in ("metropolis", "uniform", "lazy"):
        with pytest.raises(UserError, match="as many links in as out"):
            make_mixing(Funnel(), 3, rule=rule)  # type: ignore[arg-type]


def test_doubly_stochastic() -> None:
    assert is_doubly_stochastic(np.full((3, 3), 1 / 3))
    assert not is_doubly_stochastic(np.array([[1.0, 0], [1, 0]]))
    assert not is_doubly_stochastic(np.array([[2.0, -1], [-1, 2]]))


# --- spectral gap ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 4, 5, 8, 16, 33])
def test_gap_of_a_ring(size: int) -> None:
    eigenvalues = [(1 + 2 * math.cos(2 * math.pi * k / size)) / 3 for k in range(1, size)]
    expected = 1 - max(map(abs, eigenvalues))
    assert find_spectral_gap(named("ring"), size) == pytest.approx((expected, expected))


@pytest.mark.parametrize("size", [2, 4, 8, 32])
def test_gap_of_a_hypercube(size: int) -> None:
    """Eigenvalues 1 - 2k/(d+1), k = 0 to d."""
    dimensions = size.bit_length() - 1
    second = max((abs(1 - 2 * k / (dimensions + 1)) for k in range(1, dimensions + 1)), default=0)
    assert find_spectral_gap(named("hypercube"), size)[0] == pytest.approx(1 - second)


@pytest.mark.parametrize("size", [3, 6, 10])
def test_gap_of_star_chain_and_complete(size: int) -> None:
    assert find_spectral_gap(named("star"), size)[0] == pytest.approx(1 / size)
    assert find_spectral_gap(named("complete"), size)[0] == pytest.approx(1)
    second = 1 / 3 + 2 / 3 * math.cos(math.pi / size)
    assert find_spectral_gap(named("chain"), size)[0] == pytest.approx(1 - second)


def test_gap_is_one_minus_the_second_eigenvalue_also_of_one_way_links() -> None:
    sizes = np.sort(np.abs(np.linalg.eigvals(make_mixing(named("exponential"), 12))))
    assert find_spectral_gap(named("exponential"), 12)[0] == pytest.approx(1 - sizes[-2])


def test_gap_of_a_changing_topology_is_over_its_period() -> None:
    topology = named("one-peer-exponential")
    assert find_spectral_gap(topology, 8) == (1, 1)
    gap, per_step = find_spectral_gap(topology, 6)
    sizes = np.sort(np.abs(np.linalg.eigvals(np.linalg.multi_dot([make_mixing(topology, 6, t) for t in (2, 1, 0)]))))
    assert gap == pytest.approx(1 - sizes[-2])
    assert (1 - per_step) ** 3 == pytest.approx(1 - gap)


def test_nothing_agrees_in_pieces() -> None:
    assert find_spectral_gap(Pieces(), 4) == pytest.approx((0, 0))


# --- delays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "size", "diameter"),
    [
        ("chain", 9, 8),
        ("ring", 9, 4),
        ("star", 9, 2),
        ("complete", 9, 1),
        ("binary-tree", 15, 6),
        ("torus", 36, 6),
        ("hypercube", 64, 6),
        ("exponential", 64, 6),
        ("one-peer-exponential", 64, 6),
        ("edge-list(0-1-2-3-4-0+5-7-9-6-8-5+0-5+1-6+2-7+3-8+4-9)", 10, 2),  # Petersen's graph
        ("chain", 1, 0),
    ],
)
def test_known_diameters(spec: str, size: int, diameter: int) -> None:
    assert find_diameter(named(spec), size) == diameter


def test_delays_of_one_way_links_depend_on_the_direction() -> None:
    delays = find_delays(named("exponential"), 8)
    assert delays[1, 0] == 1  # 0 sends to 1
    assert delays[0, 1] == 3  # 7 places ahead is 4 + 2 + 1
    assert find_delays(Funnel(), 3)[2].tolist() == [math.inf, math.inf, 0]


def test_delays_of_a_changing_topology_depend_on_the_step() -> None:
    topology = named("one-peer-exponential")
    assert find_delays(topology, 8, step=0)[1, 0] == 1
    assert find_delays(topology, 8, step=1)[1, 0] == 3  # 2 and 4 ahead come first
    assert find_delays(topology, 8, step=3).tolist() == find_delays(topology, 8, step=0).tolist()


def test_somebody_who_is_never_reached() -> None:
    assert find_delays(Pieces(), 4)[0].tolist() == [0, 1, math.inf, math.inf]
    assert find_diameter(Pieces(), 4) == math.inf


def test_the_diameter_is_that_of_the_slowest_part() -> None:
    topology = named("double-binary-tree")
    assert find_diameter(topology, 12) == max(find_delays(topology, 12, part=part).max() for part in (0, 1))
