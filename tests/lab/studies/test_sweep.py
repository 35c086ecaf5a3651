"""The sweep told from figures by hand, from what is tried first to what is kept for later."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from sample_results import play

from tutti.errors import UserError
from tutti.lab.experiment import Results
from tutti.lab.inquiry import Story
from tutti.lab.report.chart import Chart
from tutti.lab.studies.base import Claim
from tutti.lab.studies.sweep import Sweep
from tutti.lab.tuned import read_tuned

SMALL = Sweep(algorithms=("d-psgd", "relay-sgd"), workers=4, seeds=2, epochs=3, lrs=(0.1, 0.2, 0.4))


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUTTI_TUNED", str(tmp_path / "tuned.json"))
    return tmp_path / "tuned.json"


def best_at(**rates: float) -> Any:
    """Figures: the nearer to the algorithm's best learning rate, the better; the second seed a little worse."""

    def figures(name: str, _: int) -> dict[str, Any]:
        best = next(rate for label, rate in rates.items() if label.replace("_", "-") in name)
        lr = float(name.partition("lr-")[2].split("-")[0])
        worse = 0.01 if name.endswith("seed-1") else 0.0
        return {"accuracies": [0.9 - abs(math.log2(lr / best)) / 50 - worse], "loss": 0.2}

    return figures


def tell(study: Sweep, **rates: float) -> tuple[Story, Results]:
    _, results = play(study, best_at(**rates))
    return study.tell(results), results


def claim(story: Story, begin: str) -> Claim:
    (found,) = [claim for claim in story.claims if claim.text.startswith(begin)]
    assert isinstance(found, Claim)
    return found


def rows(story: Story) -> list[list[str]]:
    (table,) = story.summary
    return [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]


# --- what is run ------------------------------------------------------------------------------------------------------


def test_every_case_with_every_value_and_seed() -> None:
    jobs = SMALL.jobs()
    assert len(jobs) == 2 * 3 * 2
    assert jobs[0].name == "d-psgd-lr-0.1-seed-0"
    assert {(job.workers, job.plan.global_batch, job.engine) for job in jobs} == {(4, 64, "threads")}


def test_partitions_are_cases_too() -> None:
    study = Sweep(algorithms=("d-psgd on chain",), partition=("iid", "dirichlet(0.5)"), lrs=(0.1,), seeds=1)
    jobs = {job.name: job for job in study.jobs()}
    assert list(jobs) == ["iid-d-psgd-on-chain-lr-0.1-seed-0", "dirichlet-0.5-d-psgd-on-chain-lr-0.1-seed-0"]
    assert [job.plan.partition for job in jobs.values()] == ["iid", "dirichlet(0.5)"]
    assert {job.spec for job in jobs.values()} == {"model-average(gossip(chain))"}


def test_any_other_parameter_may_vary() -> None:
    study = Sweep(algorithms=("d-psgd",), lrs=(0.1, 0.2), seeds=1, vary=("momentum=0,0.9", "rule=metropolis,lazy"))
    jobs = study.jobs()
    assert len(jobs) == 2 * 2 * 2
    assert {(job.plan.momentum, job.spec) for job in jobs} == {
        (momentum, spec)
        for momentum in (0.0, 0.9)
        for spec in ("model-average(gossip(ring))", "model-average(gossip(ring, rule=lazy))")
    }


def test_learning_rates_may_be_a_range() -> None:
    study = Sweep(algorithms=("d-psgd",), seeds=1, vary=("lr=0.1:0.4:x2",))
    assert [job.plan.lr for job in study.jobs()] == [0.1, 0.2, 0.4]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"vary": ("speed=1",)}, "has no parameter 'speed'"),
        ({"vary": ("momentum=0", "momentum=1")}, "names a parameter twice"),
        ({"vary": ("momentum=much",)}, "momentum takes a number"),
        ({"algorithms": ("no-such",)}, "there is no algorithm or preset 'no-such'"),
        ({"partition": ("no-such",)}, "there is no partition 'no-such'"),
    ],
)
def test_a_mistake_is_found_before_anything_runs(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Sweep(**{"algorithms": ("d-psgd",), **fields})


def test_a_search_asks_for_one_trial_of_every_case_at_a_time() -> None:
    study = Sweep(algorithms=("d-psgd", "relay-sgd"), search="tpe", trials=3, seeds=2)
    first = study.jobs()
    assert len(first) == 2 * 2
    assert len(study.ahead(Results({}), first)) == 2 * 2 * 2
    jobs, _ = play(study, best_at(d_psgd=0.1, relay_sgd=0.2))
    assert len(jobs) <= 3 * 2 * 2


# --- what is told -----------------------------------------------------------------------------------------------------


def test_the_best_is_found_for_each_algorithm() -> None:
    story, _ = tell(SMALL, d_psgd=0.2, relay_sgd=0.8)
    assert [row[:3] for row in rows(story)] == [["d-psgd", "iid", "0.2"], ["relay-sgd", "iid", "0.8"]]
    assert rows(story)[0][3:] == ["89.5 ± 0.7", "3", "within"]
    assert rows(story)[1][4] == "5"
    assert story.finding == "Best of what was tried: d-psgd lr 0.2 (89.5 %); relay-sgd lr 0.8 (89.5 %)."
    assert claim(story, "What was tried").verdict == "holds"
    assert claim(story, "Every algorithm").verdict == "holds"
    assert "a factor of 4" in claim(story, "Every algorithm").ours


def test_one_rate_for_all_is_said_so() -> None:
    story, _ = tell(SMALL, d_psgd=0.2, relay_sgd=0.2)
    assert claim(story, "Every algorithm").verdict == "does not hold"
    assert claim(story, "Every algorithm").ours == "0.2 for all"


def test_a_best_value_at_the_edge_is_missed() -> None:
    story, _ = tell(SMALL, d_psgd=1e6, relay_sgd=0.2)
    missed = claim(story, "What was tried")
    assert missed.verdict == "does not hold"
    assert "not d-psgd" in missed.ours
    assert rows(story)[0][-1] == "at the edge"


def test_the_figure_has_a_line_per_algorithm_over_the_learning_rate() -> None:
    story, _ = tell(SMALL, d_psgd=0.2, relay_sgd=0.8)
    (chart,) = [part for section in story.sections for part in section.parts if isinstance(part, Chart)]
    assert [key.text for key in chart.keys] == ["d-psgd", "relay-sgd"]
    (axes,) = chart.draw(narrow=False).axes
    assert list(axes.lines[1].get_xdata()) == [0.1, 0.2, 0.4, 0.8, 1.6]


def test_without_learning_rates_that_learn_it_is_said() -> None:
    _, results = play(SMALL, lambda *_: {"accuracies": [0.1], "loss": math.nan})
    story = SMALL.tell(results)
    assert "all diverged" in story.finding
    assert claim(story, "What was tried").verdict == "does not hold"
    assert SMALL.settle(results) == []


def test_the_best_values_are_kept_by_what_they_are_for(file: Path) -> None:
    study = Sweep(algorithms=("d-psgd",), workers=4, seeds=1, lrs=(0.1, 0.2, 0.4), samples=50, vary=("momentum=0,0.9",))
    _, results = tell(study, d_psgd=0.2)[1], play(study, best_at(d_psgd=0.2))[1]
    study.settle(results)
    entries = read_tuned(file)
    assert sorted(entry.key["momentum"] for entry in entries) == [0.0, 0.9]  # each its own
    assert {(entry.plan["lr"], entry.samples, entry.seeds) for entry in entries} == {(0.2, 50, 1)}


def test_figures_for_a_program_name_the_best() -> None:
    story, _ = tell(SMALL, d_psgd=0.2, relay_sgd=0.8)
    best = [(each["algorithm"], each["lr"]) for each in story.figures if each["best"]]
    assert best == [("d-psgd", "0.2"), ("relay-sgd", "0.8")]
