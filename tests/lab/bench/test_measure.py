"""Routes take turns, the slowest worker counts, and a wrong result is found whoever has it."""

from __future__ import annotations

from typing import Any

import pytest
from fake_clock import FakeClock
from torch import Tensor
from workers import on_tcp, on_threads

from tutti.collectives.base import OPERATIONS, Collective
from tutti.collectives.ring import Ring
from tutti.comm.base import Comm
from tutti.lab.bench import measure as measuring
from tutti.lab.bench.measure import Measured, measure, take_turn
from tutti.lab.bench.plan import DTYPES, Plan, plan_routes


def small_plan(routes: tuple[str, ...] = ("ring", "star", "native"), samples: int = 4) -> Plan:
    return Plan({"all-reduce": routes}, (4096,), ("float32",), 0.1, samples)


def run(plan: Plan, workers: int = 2, over: Any = on_threads) -> list[Measured]:
    results = over(workers, lambda comm: measure(comm, lambda _: None, plan))
    return [Measured(**row) for row in results[0]]


def test_one_result_per_route_with_all_its_samples() -> None:
    rows = run(small_plan(("ring", "star")), over=on_tcp)
    assert [row.route for row in rows] == ["ring", "star"]
    for row in rows:
        assert (row.op, row.dtype, row.bytes) == ("all-reduce", "float32", 4096)
        assert len(row.times) == 4
        assert all(time > 0 for time in row.times)
        assert row.correct
        assert 0 < row.copy < min(row.times)
    assert len({row.repeats for row in rows}) == 1, "the same for all routes of a size"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_route_does_every_operation_it_offers_right(dtype: str) -> None:
    """At a size that does not divide by the workers."""
    plan = Plan(plan_routes(["all"], ["all"]), (1000,), (dtype,), 0.1, samples=1)
    rows = run(plan, workers=3)
    assert {row.op for row in rows} == set(OPERATIONS)
    assert [(row.op, row.route) for row in rows if not row.correct] == []
    assert {row.bytes % 3 for row in rows} == {0}
    assert {1000 - row.bytes < 24 for row in rows} == {True}


def test_as_many_samples_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "choose_repeats", lambda _: 1)
    plan = Plan({"all-reduce": ("star",)}, (64,), ("float32",), seconds=0.02)
    (row,) = run(plan)
    assert 5 <= len(row.times) <= 200
    (more,) = run(Plan({"all-reduce": ("star",)}, (64,), ("float32",), seconds=5.0))
    assert len(more.times) == 200


def test_routes_take_turns_and_every_turn_begins_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def note(route: Collective, operation: str, comm: Comm, buffer: Tensor, tag: str) -> None:
        if comm.rank == 0:
            calls.append(route.name)
        honest(route, operation, comm, buffer, tag)

    honest = Collective.perform
    monkeypatch.setattr(Collective, "perform", note)
    monkeypatch.setattr(measuring, "choose_repeats", lambda _: 2)
    run(small_plan(samples=4))
    checks_and_warm_up, again = 3 + 2 * 3, 3
    assert calls[:3] == calls[-again:] == ["ring", "star", "native"]
    turns = ["ring star native", "star native ring", "native ring star", "ring star native"]
    two_in_a_row = [name for turn in turns for name in turn.split() for _ in range(2)]
    assert calls[checks_and_warm_up:-again] == two_in_a_row


def test_turns() -> None:
    assert [take_turn(["a", "b", "c"], turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]


def test_a_sample_is_as_long_as_the_slowest_worker_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """By clocks on which worker i's operation takes i+1 seconds, and nothing else takes any time."""
    honest = Collective.perform

    def tick(route: Collective, operation: str, comm: Comm, buffer: Tensor, tag: str) -> None:
        honest(route, operation, comm, buffer, tag)
        comm.clock.sleep(1.0 + comm.rank)

    def work(comm: Comm) -> list[dict[str, Any]]:
        comm.clock = FakeClock()  # type: ignore[assignment]
        return measure(comm, lambda _: None, small_plan(("star",), samples=3))

    monkeypatch.setattr(Collective, "perform", tick)
    monkeypatch.setattr(measuring, "choose_repeats", lambda _: 4)
    (row,) = on_threads(3, work)[0]
    assert row["times"] == [3.0] * 3
    assert row["repeats"] == 4


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_one_wrong_element_on_one_worker_is_found(culprit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Ring.run

    def spoil(self: Ring, comm: Comm, buffer: Tensor, tag: str, *more: Any) -> None:
        honest(self, comm, buffer, tag, *more)
        if comm.rank == culprit:
            buffer[-1] += 1

    monkeypatch.setattr(Ring, "run", spoil)
    rows = run(small_plan(), workers=3)
    assert {row.route: row.correct for row in rows} == {"ring": False, "star": True, "native": True}


def test_what_goes_wrong_only_later_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, calls = Ring.run, []

    def tire(self: Ring, comm: Comm, buffer: Tensor, tag: str, *more: Any) -> None:
        honest(self, comm, buffer, tag, *more)
        calls.append(comm.rank)
        if len(calls) > 4:
            buffer[0] = 0.5

    monkeypatch.setattr(Ring, "run", tire)
    assert [row.correct for row in run(small_plan(("ring",)))] == [False]


def test_every_point_is_told_of_before_it_begins() -> None:
    told: list[dict[str, Any]] = []
    plan = Plan({"all-reduce": ("star",), "reduce": ("star",)}, (64, 128), ("float32",), 0.1, samples=1)
    on_threads(2, lambda comm: measure(comm, told.append if comm.rank == 0 else lambda _: None, plan))
    assert [(each["op"], each["bytes"]) for each in told] == [
        ("all-reduce", 64),
        ("all-reduce", 128),
        ("reduce", 64),
        ("reduce", 128),
    ]
