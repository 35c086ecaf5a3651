"""Searches driven by made-up scores: where a grid goes on, when it ends, and that every search can be gone on with."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest

from tutti.errors import UserError
from tutti.lab.experiment import Job
from tutti.lab.search import LOST, Axis, Progress, Search, Trial
from tutti.train import Plan

BASE = Job("case", "d-psgd", Plan(), 4)
RATES = Axis.rates([0.04, 0.01, 0.02])


def explore(search: Search, quality: Callable[[Trial], float]) -> tuple[Progress, list[str]]:
    """Run it to its end; returns what was tried, in order."""
    known: dict[str, float] = {}
    order: list[str] = []

    def score(trial: Trial) -> float | None:
        return known.get(trial.name)

    while wanted := search.follow(BASE, score).wanted:
        assert all(trial.name not in known for trial in wanted)
        known.update({trial.name: quality(trial) for trial in wanted})
        order += [trial.name for trial in wanted]
    return search.follow(BASE, score), order


def around(best: float) -> Callable[[Trial], float]:
    """The better, the fewer powers of two away from the best learning rate."""
    return lambda trial: 1 - abs(math.log2(float(trial["lr"]) / best)) / 100


# --- axes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("momentum=0,0.9", Axis("momentum", ("0", "0.9"))),
        ("lr=0.01:0.08:x2", Axis("lr", ("0.01", "0.02", "0.04", "0.08"), "factors")),
        ("mu = 0.5:0.8:+0.1", Axis("mu", ("0.5", "0.6", "0.7", "0.8"), "steps")),
        (
            "exchange=gossip(ring, rule=lazy),relay(chain)",
            Axis("exchange", ("gossip(ring, rule=lazy)", "relay(chain)")),
        ),
        ("exchange=relay:chain", Axis("exchange", ("relay:chain",))),
    ],
)
def test_what_is_typed_becomes_an_axis(text: str, axis: Axis) -> None:
    assert Axis.read(text) == axis


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "lr=a:b:x2", "lr=1:2:x1", "lr=2:1:x2", "lr=0:1:x2", "mu=0:1:+0"])
def test_what_is_no_axis_is_said(text: str) -> None:
    with pytest.raises(UserError, match=r"as in lr=0.01:0.64:x2"):
        Axis.read(text)


def test_learning_rates_are_sorted_and_once() -> None:
    assert Axis.rates([0.2, 0.1, 0.2]).values == ("0.1", "0.2")


# --- grid -------------------------------------------------------------------------------------------------------------


def test_a_grid_ends_where_the_best_lies_within() -> None:
    progress, order = explore(Search((RATES,)), around(0.02))
    assert order == ["case-lr-0.01", "case-lr-0.02", "case-lr-0.04"]
    assert progress.best(around(0.02))["lr"] == "0.02"
    assert not progress.at_edge(progress.best(around(0.02)))


@pytest.mark.parametrize(
    ("best", "beyond"), [(0.16, ["0.08", "0.16", "0.32"]), (0.0025, ["0.005", "0.0025", "0.00125"])]
)
def test_a_grid_goes_on_beyond_its_edge_until_it_gets_worse(best: float, beyond: list[str]) -> None:
    progress, order = explore(Search((RATES,)), around(best))
    assert [name.removeprefix("case-lr-") for name in order[3:]] == beyond
    assert float(progress.best(around(best))["lr"]) == best
    assert not progress.at_edge(progress.best(around(best)))


def test_a_grid_does_not_go_on_for_ever() -> None:
    progress, order = explore(Search((RATES,)), around(1e9))
    assert len(order) == 3 + 6
    assert progress.at_edge(progress.best(around(1e9)))


def test_equal_scores_are_no_reason_to_go_on() -> None:
    progress, order = explore(Search((RATES,)), lambda _: 0.5)
    assert len(order) == 3
    assert progress.best(lambda _: 0.5)["lr"] == "0.02"


def test_where_all_diverged_lower_rates_are_tried() -> None:
    def quality(trial: Trial) -> float:
        return 0.5 if float(trial["lr"]) < 0.004 else LOST

    progress, order = explore(Search((RATES,)), quality)
    assert order[3:] == ["case-lr-0.005", "case-lr-0.0025", "case-lr-0.00125"]
    assert quality(progress.best(quality)) == 0.5


def test_all_combinations_and_only_the_learning_rate_grows() -> None:
    def quality(trial: Trial) -> float:
        return around(0.08)(trial) + float(trial["momentum"])

    progress, order = explore(Search((RATES, Axis("momentum", ("0", "0.9")))), quality)
    assert len(order) == (3 + 2) * 2
    best = progress.best(quality)
    assert (best["lr"], best["momentum"]) == ("0.08", "0.9")
    assert best.job.plan.lr == 0.08
    assert best.job.plan.momentum == 0.9
    assert best.job.name == best.name == "case-lr-0.08-momentum-0.9"


def test_one_value_alone_is_tried_and_nothing_else() -> None:
    _, order = explore(Search((Axis.rates([0.1]),)), lambda _: 0.5)
    assert order == ["case-lr-0.1"]


# --- tpe --------------------------------------------------------------------------------------------------------------


def test_a_search_comes_near_the_best_within_its_trials() -> None:
    search = Search((Axis.read("lr=0.001:1:x10"),), "tpe", trials=20)
    progress, order = explore(search, around(0.05))
    assert len(order) <= 20
    assert 0.02 < float(progress.best(around(0.05))["lr"]) < 0.12
    assert all(0.001 <= float(trial["lr"]) <= 1 for trial in progress.tried)
    assert float(progress.tried[0]["lr"]) == pytest.approx(math.sqrt(0.001), rel=0.01)  # the middle first


def test_the_edges_of_a_search_are_its_limits() -> None:
    search = Search((Axis.read("lr=0.001:1:x10"),), "tpe", trials=3)
    progress, _ = explore(search, around(0.05))
    assert not any(progress.at_edge(trial) for trial in progress.tried if 0.002 < float(trial["lr"]) < 0.5)
    assert progress.at_edge(Trial(BASE, (("lr", "0.98"),)))


def test_a_search_that_is_gone_on_with_asks_for_the_same() -> None:
    search = Search((Axis.read("lr=0.001:1:x10"), Axis("momentum", ("0", "0.5", "0.9"))), "tpe", trials=8)
    first, order = explore(search, around(0.05))
    again, same = explore(search, around(0.05))
    assert (order, first.tried) == (same, again.tried)
    some = {name: around(0.05)(trial) for name, trial in zip(order[:3], first.tried, strict=False)}
    (wanted,) = search.follow(BASE, lambda trial: some.get(trial.name)).wanted
    assert wanted.name == order[3]


def test_how_many_trials_are_left_is_known() -> None:
    search = Search((RATES,), "tpe", trials=5)
    assert search.ahead(search.follow(BASE, lambda _: None)) == 4
    assert Search((RATES,)).ahead(Search((RATES,)).follow(BASE, lambda _: None)) == 0


def test_without_optuna_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs optuna: pip install 'tutti-train\[sweep\]', or take --search grid"):
        Search((RATES,), "tpe").follow(BASE, lambda _: None)
