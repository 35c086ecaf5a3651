"""Routes are found by what they offer, and the least that any of them can do is computed by hand."""

from __future__ import annotations

import pytest

from tutti.collectives.base import OPERATIONS
from tutti.errors import UserError
from tutti.lab.routes import (
    bus_factor,
    find_operations,
    find_routes,
    least_of_worker,
    least_seconds,
    least_total,
    read_routes,
)

# --- which there are -------------------------------------------------------------------------------------------------


def test_all_are_those_that_offer_the_operation() -> None:
    found = [route.name for route in find_routes("gather", ["all"])]
    assert {"star", "native"} <= set(found)
    assert "butterfly" not in found
    assert found[-1] == "native", "the backend's own stands behind ours"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_routes_beside_the_backends(operation: str) -> None:
    assert any(route.own for route in find_routes(operation, ["all"]))


def test_presets_are_routes_and_each_route_comes_once() -> None:
    found = [str(route.collective) for route in read_routes(["all"])]
    assert "tree(double-binary-tree)" in found
    assert len(found) == len(set(found))
    assert [route.name for route in read_routes(["ring", "ring(segment=2MiB)", "star"])] == ["ring", "star"]


def test_a_route_keeps_the_name_it_was_typed_by() -> None:
    (route,) = find_routes("all-reduce", ["ring(segment=1MiB)"])
    assert route.name == "ring(segment=1MiB)"
    assert route.collective.name == "ring"


def test_a_route_that_does_not_offer_the_operation_is_named_with_those_that_do() -> None:
    with pytest.raises(UserError, match=r"'butterfly' has no gather, only all-reduce; gather is offered by .*star"):
        find_routes("gather", ["star", "butterfly"])


def test_operations_by_name() -> None:
    assert find_operations(["reduce", "all-reduce", "reduce"]) == ["reduce", "all-reduce"]
    assert find_operations(["all"]) == list(OPERATIONS)
    with pytest.raises(UserError, match="there is no operation 'allreduce'; did you mean 'all-reduce'"):
        find_operations(["allreduce"])


# --- what they must at least do --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all-reduce", 1.5),
        ("reduce-scatter", 0.75),
        ("all-gather", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("all-to-all", 0.75),
        ("reduce", 1.0),
        ("broadcast", 1.0),
    ],
)
def test_factors_are_those_of_nccl_tests(operation: str, factor: float) -> None:
    assert bus_factor(operation, 4) == factor


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_no_route_beats_the_least(operation: str, workers: int) -> None:
    """Every route's own figures lie at or above the bounds."""
    for route in find_routes(operation, ["all"]):
        cost = route.collective.cost(workers, 10**6, operation)
        assert cost.total >= least_total(operation, workers) * 10**6 * (1 - 1e-9), route.name
        assert cost.busiest >= least_of_worker(operation, workers, root=True) * 10**6 * (1 - 1e-9), route.name
        bound = least_seconds(operation, 10**6, [1e6] * workers, latency=0.25)
        assert cost.seconds(0.25, 1e6) >= bound * (1 - 1e-9), route.name


@pytest.mark.parametrize("operation", OPERATIONS)
def test_over_equal_links_the_least_is_the_factor_over_the_rate(operation: str) -> None:
    expected = 0.25 + bus_factor(operation, 4) * 8e6 / 1e6
    assert least_seconds(operation, 8e6, [1e6] * 4, latency=0.25) == pytest.approx(expected)


def test_a_slow_link_must_carry_its_own_worker_only() -> None:
    rates = [1e6, 1e6, 1e6, 1e5]
    assert least_seconds("all-reduce", 1e6, rates) == pytest.approx(10.0), "a whole buffer, not 1.5 of it"
    assert least_seconds("gather", 1e6, rates) == pytest.approx(2.5), "its own piece"
    assert least_seconds("gather", 1e6, [1e6] * 4) == pytest.approx(0.75), "the root's link"
    assert least_seconds("all-reduce", 1e6, [1e6, 1e6, 1e6, 9e5]) == pytest.approx(6 / 3.9), "all links together"


def test_one_worker_sends_nothing() -> None:
    assert all(least_seconds(operation, 1e6, [1e6], latency=1.0) == 0 for operation in OPERATIONS)
