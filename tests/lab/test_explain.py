"""α–β times against figures computed by hand, and changes of winner where two lines really cross."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from torch import Tensor

from tutti.collectives.base import Collective, Combine, Cost, add_up
from tutti.comm.base import Comm
from tutti.lab.explain import SWEEP, Links, document_003, estimate, explain, find_spans, make_json, sweep_sizes
from tutti.lab.routes import Route, find_routes
from tutti.spec import parse

GIGABIT = Links(workers=4, latency=1e-4, bandwidth=125e6)  # bytes per second
BYTES = 37_000_000


@dataclass
class Line(Collective):
    """A route whose time is a straight line."""

    rounds: int = 1
    share: float = 1.0
    name = "line"  # type: ignore[assignment]

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        raise NotImplementedError

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        return Cost(self.rounds, self.share * nbytes, size * self.share * nbytes, self.share * nbytes)


def route(name: str) -> Route:
    return Route(name, parse(name, Collective))


# --- figures ---------------------------------------------------------------------------------------------------------


def test_ring_by_hand() -> None:
    """2(P−1)·α + 2(P−1)/P·bytes/β = 6 * 0.1 ms + 1.5 * 296 ms."""
    each = estimate(route("ring"), "all-reduce", BYTES, GIGABIT)
    assert each.seconds == pytest.approx(0.0006 + 0.444)
    assert each.cost.busiest == 1.5 * BYTES
    assert each.cost.total == 6 * BYTES
    assert each.utilisation == pytest.approx(0.444 / 0.4446)


def test_star_by_hand() -> None:
    """The root's link takes three buffers in and then three out: it is busy half of the time in either direction."""
    each = estimate(route("star"), "all-reduce", BYTES, GIGABIT)
    assert each.seconds == pytest.approx(0.0002 + 6 * 0.296)
    assert each.utilisation == pytest.approx(0.5, abs=1e-3)


def test_butterfly_by_hand() -> None:
    assert estimate(route("butterfly"), "all-reduce", BYTES, GIGABIT).seconds == pytest.approx(0.0002 + 2 * 0.296)


def test_another_operation_by_hand() -> None:
    assert estimate(route("ring"), "all-gather", BYTES, GIGABIT).seconds == pytest.approx(0.0003 + 0.75 * 0.296)


def test_the_fastest_stands_first_and_all_routes_are_there() -> None:
    routes = find_routes("all-reduce", ["all"])
    found = explain("all-reduce", routes, BYTES, GIGABIT)
    seconds = [each.seconds for each in found.estimates]
    assert seconds == sorted(seconds)
    assert {each.route.name for each in found.estimates} == {each.name for each in routes}
    assert found.best == seconds[0]
    assert found.floor == pytest.approx(1e-4 + 0.444)


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_document_003_is_the_binomial_tree_one_way(workers: int) -> None:
    """What it takes an all-reduce for is what the tree's own cost function says of a reduce without latency."""
    links = Links(workers, 0.0, 125e6)
    tree = estimate(route("tree(hypercube, segment=1GiB)"), "reduce", BYTES, links)
    assert tree.seconds == pytest.approx(document_003(BYTES, links))


def test_document_003_by_hand() -> None:
    assert document_003(BYTES, GIGABIT) == pytest.approx(0.592)
    assert explain("all-reduce", [route("ring")], BYTES, GIGABIT).published == pytest.approx(0.592)
    assert explain("all-gather", [route("ring")], BYTES, GIGABIT).published is None


# --- where each wins -------------------------------------------------------------------------------------------------


def test_two_lines_cross_where_they_should() -> None:
    """1 round and 2 S against 3 rounds and 1 S: equal at S = 2 αβ = 25,000 bytes."""
    short, long = Route("short", Line(1, 2.0)), Route("long", Line(3, 1.0))
    first, second = find_spans("all-reduce", [long, short], BYTES, GIGABIT)
    assert (first.routes, second.routes) == (("short",), ("long",))
    assert first.begin == SWEEP[0]
    assert second.end == SWEEP[1]
    assert second.begin == first.end + 1
    assert second.begin == pytest.approx(25_000, rel=2e-3)


def test_a_route_that_wins_only_between_two_others_is_found() -> None:
    """Its whole span lies between two of the sizes that are tried first."""
    routes = [Route("a", Line(1, 2.0)), Route("b", Line(3, 1.0)), Route("c", Line(2, 1.4999))]
    spans = find_spans("all-reduce", routes, BYTES, GIGABIT)
    assert [span.routes for span in spans] == [("a",), ("c",), ("b",)]
    assert spans[1].end / spans[1].begin < 1.01


def test_routes_that_take_equally_long_win_together() -> None:
    spans = find_spans("all-reduce", [Route("a", Line()), Route("b", Line()), Route("c", Line(9))], BYTES, GIGABIT)
    assert [(span.routes, span.begin, span.end) for span in spans] == [(("a", "b"), *SWEEP)]


def test_the_backends_own_takes_no_part_unless_it_is_alone() -> None:
    both = find_spans("all-reduce", [route("native"), route("star")], BYTES, GIGABIT)
    assert [span.routes for span in both] == [("star",)]
    alone = find_spans("all-reduce", [route("native")], BYTES, GIGABIT)
    assert [span.routes for span in alone] == [("native",)]


@pytest.mark.parametrize("nbytes", [16, 2**32])
def test_the_size_asked_for_is_always_within(nbytes: int) -> None:
    spans = find_spans("all-reduce", find_routes("all-reduce", ["ring", "star"]), nbytes, GIGABIT)
    assert spans[0].begin <= nbytes <= spans[-1].end


@pytest.mark.parametrize("operation", ["all-reduce", "broadcast", "reduce-scatter"])
def test_the_winner_of_a_span_really_wins_within_it(operation: str) -> None:
    routes = find_routes(operation, ["all"])
    for span in find_spans(operation, routes, BYTES, GIGABIT):
        middle = (span.begin + span.end) // 2
        times = {each.name: estimate(each, operation, middle, GIGABIT).seconds for each in routes if each.own}
        assert times[span.routes[0]] <= min(times.values()) * 1.001


def test_sizes_of_the_sweep_rise_and_end_where_they_should() -> None:
    sizes = sweep_sizes(1000, 1_000_000)
    assert (sizes[0], sizes[-1]) == (1000, 1_000_000)
    assert sizes == sorted(set(sizes))


# --- for a program ---------------------------------------------------------------------------------------------------


def test_json_has_the_figures() -> None:
    found = make_json(explain("all-reduce", find_routes("all-reduce", ["ring", "star"]), BYTES, GIGABIT))
    assert (found["op"], found["workers"], found["bytes"]) == ("all-reduce", 4, BYTES)
    ring, star = found["routes"]
    assert ring["route"] == "ring"
    assert ring["times_best"] == 1
    assert star["times_best"] == pytest.approx(star["seconds"] / ring["seconds"])
    assert found["document_003"]["seconds"] == pytest.approx(0.592)
    assert found["wins"][-1] == {"routes": ["ring"], "from": found["wins"][-1]["from"], "to": SWEEP[1]}
