"""What is measured: which routes for which operation, how many elements, how often in a row, how many samples."""

from __future__ import annotations

import pickle

import pytest
import torch

from tutti.collectives.base import OPERATIONS
from tutti.errors import UserError
from tutti.lab.bench.plan import Plan, choose_repeats, choose_samples, count_elements, find_dtypes, plan_routes


def test_named_operations_take_all_their_routes() -> None:
    found = plan_routes(["gather"], ["all"])
    assert list(found) == ["gather"]
    assert {"star", "native"} <= set(found["gather"])


def test_all_operations_take_what_the_named_routes_offer() -> None:
    found = plan_routes(["all"], ["butterfly", "star"])
    assert found["all-reduce"] == ("butterfly", "star")
    assert found["gather"] == ("star",)
    assert "gather" not in plan_routes(["all"], ["butterfly"])
    assert list(plan_routes(["all"], ["all"])) == list(OPERATIONS)


def test_a_named_operation_that_a_named_route_lacks_is_a_mistake() -> None:
    with pytest.raises(UserError, match="'butterfly' has no gather"):
        plan_routes(["all-reduce", "gather"], ["butterfly"])


def test_dtypes() -> None:
    assert find_dtypes(["float64", "float32", "float64"]) == ("float64", "float32")
    with pytest.raises(UserError, match="there is no dtype 'int8' to be summed; there is float32"):
        find_dtypes(["int8"])


def test_points_and_the_least_size() -> None:
    plan = Plan({"all-reduce": ("ring",), "reduce": ("star",)}, (16, 32), ("float32", "float64"), 0.5)
    assert plan.points == 8
    plan.check(2)
    with pytest.raises(UserError, match="begin at 16 bytes; 3 workers with a float64 each take 24"):
        plan.check(3)
    with pytest.raises(UserError, match="one worker sends nothing"):
        plan.check(1)
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize(
    ("nbytes", "dtype", "workers", "count"),
    [(4096, torch.float32, 4, 1024), (4096, torch.float32, 3, 1023), (4096, torch.bfloat16, 3, 2046)],
)
def test_elements_fit_and_divide(nbytes: int, dtype: torch.dtype, workers: int, count: int) -> None:
    assert count_elements(nbytes, dtype, workers) == count


def test_short_operations_go_several_in_a_row() -> None:
    assert choose_repeats(1e-6) == 20
    assert choose_repeats(5e-4) == 4
    assert choose_repeats(1.0) == 1
    assert choose_repeats(0.0) == 20


def test_samples_fill_the_budget_within_bounds() -> None:
    assert choose_samples(turn=0.01, budget=0.5) == 50
    assert choose_samples(turn=10.0, budget=0.5) == 5
    assert choose_samples(turn=1e-6, budget=0.5) == 200
