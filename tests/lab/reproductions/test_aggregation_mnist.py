"""Document 000 told from figures by hand: every verdict turns with them, and what is shown is what was measured."""

from __future__ import annotations

import math
from typing import Any

import pytest
from matplotlib.patches import Rectangle
from sample_results import make_results

from tutti.lab.inquiry import Story
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Table
from tutti.lab.reproductions.aggregation_mnist import (
    NETWORK,
    PRIMITIVES,
    SLOW_CPU,
    SLOW_LINK,
    SLOW_NETWORK,
)
from tutti.lab.reproductions.base import Claim, find

REPRODUCTION = find("aggregation-mnist")
MODEL = 250_000.0  # bytes
# a step of all-gather takes half as long again on two hosts, and twice as long on four, where it sends twice as much
FIGURES: dict[str, dict[str, Any]] = {
    "all-reduce": {"step": 0.040},
    "all-gather": {"step": 0.060},
    "all-reduce-on-4": {"step": 0.050, "nbytes": 1.5 * MODEL},
    "all-gather-on-4": {"step": 0.100, "nbytes": 3 * MODEL},
    "slow-ring-on-4": {"step": 0.080, "nbytes": 1.5 * MODEL},
    "slow-all-gather-on-4": {"step": 0.120, "nbytes": 3 * MODEL},
}
LOSSES = [2.3 - 0.05 * step for step in range(20)]


def tell(**changes: dict[str, Any]) -> Story:
    """What changes beside the figures above, by the job's name with underscores."""

    def figures(name: str, _: int) -> dict[str, Any]:
        usual = {"step": 0.040, "spread": 0.0, "exposed": 0.010, "nbytes": MODEL, "accuracies": [0.98]}
        return {**usual, **FIGURES.get(name, {}), **changes.get(name.replace("-", "_"), {})}

    return REPRODUCTION.tell(make_results(REPRODUCTION.jobs(False), 1, figures))


def claim(story: Story, begin: str) -> Claim:
    (found,) = [claim for claim in story.claims if claim.text.startswith(begin)]
    return found


def rows(story: Story, section: int) -> list[dict[str, str]]:
    (table,) = [part for part in story.sections[section].parts if isinstance(part, Table)]
    header = [text.replace("\n", " ") for text in table.header]
    return [dict(zip(header, map(str, row), strict=True)) for row in table.rows]


# --- what is run ------------------------------------------------------------------------------------------------------


def test_jobs_of_one_question_differ_in_nothing_else() -> None:
    jobs = {job.name: job for job in REPRODUCTION.jobs(False)}
    assert len({jobs[way].plan for way in PRIMITIVES}) == 1
    assert len({jobs[way].spec for way in PRIMITIVES}) == 4
    for way in PRIMITIVES:
        for suffix, network in (("-slow-link", SLOW_LINK), ("-slow-cpu", SLOW_CPU)):
            assert (jobs[way + suffix].spec, jobs[way + suffix].network) == (jobs[way].spec, network)
    assert jobs["sum-half-lr"].plan.lr == jobs["sum"].plan.lr / 2 == jobs["all-reduce"].plan.lr / 2
    assert jobs["sum-half-lr"].spec == jobs["sum"].spec
    assert jobs["adam-parameters"].plan == jobs["adam-gradients"].plan
    assert jobs["adam-gradients"].spec == jobs["all-reduce"].spec
    assert {job.network for job in jobs.values()} == {NETWORK, SLOW_NETWORK, SLOW_LINK, SLOW_CPU}


def test_every_host_computes_as_much_on_four_as_on_two() -> None:
    jobs = {job.name: job for job in REPRODUCTION.jobs(False)}
    shares = {jobs[name].plan.global_batch / jobs[name].workers for name in ("all-reduce", "all-reduce-on-4")}
    assert shares == {32}


# --- the finding and the verdicts -------------------------------------------------------------------------------------


def test_the_finding_has_the_measured_ratios() -> None:
    assert tell().finding == (
        "All-gather takes 1.50 times as long as all-reduce on two hosts, where it sends 1.00 times the bytes, and 2.00 "
        "times as long on four, where it sends 2.00 times the bytes; on two hosts they reach 98.0 % and 98.0 %; "
        "over links of 50 Mbit/s, where bytes decide, an all-gather takes 1.00 times as long as a ring on two hosts "
        "and 1.50 times on four."
    )


def test_the_finding_follows_the_figures() -> None:
    story = tell(all_gather={"step": 0.030, "accuracies": [0.95], "nbytes": 3 * MODEL})
    assert "takes 0.75 times as long as all-reduce on two hosts, where it sends 3.00 times the bytes" in story.finding
    assert "they reach 95.0 % and 98.0 %" in story.finding


@pytest.mark.parametrize(
    ("step", "times", "verdict"),
    [
        (0.060, "1.50", "reproduced"),
        (0.0472, "1.18", "reproduced"),
        (0.045, "1.12", "not reproduced"),
        (0.030, "0.75", "not reproduced"),
    ],
)
def test_all_gather_is_slower_or_not(step: float, times: str, verdict: str) -> None:
    found = claim(tell(all_gather={"step": step}), "All-reduce works faster")
    assert found.verdict == verdict
    assert found.published == "44.2 s and 75.1 s: 1.70 times"
    # 41 steps each: 41 * 0.04 s and 41 times the other
    assert found.ours == f"{times} times per step (all-reduce 1.64 s, all-gather {41 * step:.2f} s)"


@pytest.mark.parametrize(
    ("on_two", "on_four", "verdict"),
    [(1.0, 2.0, "wrong"), (1.1, 1.9, "wrong"), (2.0, 2.0, "not reproduced"), (1.0, 1.0, "not reproduced")],
)
def test_the_bytes_decide_why_it_is_slower(on_two: float, on_four: float, verdict: str) -> None:
    story = tell(all_gather={"nbytes": on_two * MODEL}, all_gather_on_4={"nbytes": on_four * 1.5 * MODEL})
    found = claim(story, "All-reduce is faster because")
    assert found.verdict == verdict
    assert f"{on_two:.2f} on two hosts, {on_four:.2f} on four (time: 1.50 and 2.00)" in found.ours
    assert ("explain nothing" in found.why) == (verdict == "wrong")


@pytest.mark.parametrize(
    ("accuracy", "shown", "verdict"), [(0.98, "98.00 %", "reproduced"), (0.97, "97.00 %", "not reproduced")]
)
def test_accuracies_are_similar_or_not(accuracy: float, shown: str, verdict: str) -> None:
    found = claim(tell(all_gather={"accuracies": [accuracy]}), "Both reach")
    assert (found.verdict, found.ours) == (verdict, f"98.00 %, {shown}")
    assert found.published == "98.29 %, 98.05 %"
    assert ("differ by more" in found.why) == (verdict == "not reproduced")


# --- tables -----------------------------------------------------------------------------------------------------------


def test_primitives_as_they_were_measured() -> None:
    sent = [3 * MODEL, MODEL]
    shown = rows(tell(reduce_broadcast={"step": 0.080, "exposed": 0.060, "each_bytes_per_step": sent}), 0)
    assert [row["primitive"] for row in shown] == [*PRIMITIVES, "all-reduce-on-4", "all-gather-on-4"]
    assert shown[2] == {
        "primitive": "reduce-broadcast",
        "hosts": "2",
        "step ms": "80.0",
        "of it waiting": "75 %",
        "sent per step worker 0": "732 KiB",
        "worker 1": "244 KiB",
        "accuracy": "98.00 %",
    }
    assert shown[-1]["hosts"] == "4"


def test_what_is_aggregated_is_held_against_the_mean_of_gradients() -> None:
    """Adam's against Adam's."""
    losses = {
        name: {"each_losses": [[loss + by for loss in LOSSES] + [0.0] * 80] * 2}
        for name, by in {
            "all_reduce": 0.0,
            "sum": 0.25,
            "sum_half_lr": 1e-7,
            "parameters": 0.0,
            "adam_gradients": 0.5,
            "adam_parameters": 0.75,
        }.items()
    }
    shown = rows(tell(**losses, parameters_sum={"loss": 0.5, "each_losses": [[*LOSSES[:19], 1e9]] * 2}), 2)
    apart = {(row["aggregated"], row["optimizer"]): row["step losses apart first 20 steps"] for row in shown}
    assert apart == {
        ("gradients, mean", "SGD"): "0.0e+00",
        ("gradients, sum", "SGD"): "2.5e-01",
        ("gradients, sum, learning rate divided by 2", "SGD"): "1.0e-07",
        ("parameters, mean", "SGD"): "0.0e+00",
        ("parameters, sum", "SGD"): "diverged",
        ("gradients, mean", "Adam"): "0.0e+00",
        ("parameters, mean", "Adam"): "2.5e-01",
    }


@pytest.mark.parametrize("loss", [9.4e29, math.inf, math.nan])
def test_a_model_that_is_lost_has_no_figures(loss: float) -> None:
    lost = {"loss": loss, "accuracies": [0.1], "each_losses": [[*LOSSES[:19], loss]] * 2}
    (row,) = [row for row in rows(tell(parameters_sum=lost), 2) if row["aggregated"] == "parameters, sum"]
    assert row["test loss"] == row["step losses apart first 20 steps"] == "diverged"
    assert row["accuracy"] == "10.00 %"


BOTTLENECK = {
    "all_reduce": {"each_exposed": [[0.010] * 41, [0.010] * 41]},
    "all_reduce_slow_link": {"step": 0.100, "each_exposed": [[0.070] * 300, [0.070] * 300]},
    "all_reduce_slow_cpu": {"step": 0.090, "each_exposed": [[0.060] * 300, [0.002] * 300]},
}


def test_who_waits_at_a_bottleneck() -> None:
    shown = rows(tell(**BOTTLENECK), 3)[:3]
    columns = ("step ms", "× equal hosts", "worker 0 waits ms", "the slow one waits ms")
    assert [[row[column] for column in columns] for row in shown] == [
        ["40.0", "1.00", "10.0", "10.0"],
        ["100.0", "2.50", "70.0", "70.0"],
        ["90.0", "2.25", "60.0", "2.0"],
    ]


def test_the_bars_of_both_workers_add_up_to_the_step() -> None:
    (chart,) = [part for part in tell(**BOTTLENECK).sections[3].parts if isinstance(part, Chart)]
    for narrow in (False, True):
        bars = [patch for patch in chart.draw(narrow).axes[0].patches if isinstance(patch, Rectangle)]
        ends = [bar.get_x() + bar.get_width() for bar in bars]
        assert ends == pytest.approx([30, 40, 30, 40, 30, 100, 30, 100, 30, 90, 88, 90])


def test_where_bytes_decide_the_ratios_are_the_routes_own() -> None:
    story = tell()
    assert [row["sent per step worker 0"] for row in rows(story, 1)] == ["244 KiB", "244 KiB", "366 KiB", "732 KiB"]
    said = story.sections[1].parts[1]
    assert "sends 2.00 times as much and takes 1.50 times as long" in said.text
