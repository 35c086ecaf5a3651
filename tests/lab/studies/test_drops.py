"""The study of lost messages, told from figures by hand: every verdict turns with them."""

from __future__ import annotations

from typing import Any

import pytest
from sample_results import play

from tutti.lab.inquiry import Story
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Bullets, Table
from tutti.lab.studies.base import Claim
from tutti.lab.studies.drops import Drops, goes_on

NAMES = ("allreduce-model", "d-psgd", "relay-sgd")
SMALL = Drops(task="digits", algorithms=NAMES, seeds=2, epochs=2, lrs=(0.1,))


def tell(study: Drops = SMALL, **ends: float) -> Story:
    """All reach 90 %; `ends` are by setting, with underscores."""
    reached = {key.replace("_", "-"): value for key, value in ends.items()}

    def figures(name: str, _: int) -> dict[str, Any]:
        return {"accuracies": [0.5, reached.get(name.rpartition("-seed-")[0], 0.9)], "loss": 0.1}

    return study.tell(play(study, figures)[1])


def claim(story: Story) -> Claim:
    (found,) = story.claims
    assert isinstance(found, Claim)
    return found


# --- what is run ------------------------------------------------------------------------------------------------------


def test_only_those_who_go_on_without_what_is_lost_run_with_loss() -> None:
    assert [name for name in (*NAMES, "ddp", "d2") if goes_on(name)] == ["d-psgd", "relay-sgd", "d2"]
    names = [job.name for job in SMALL.settings()]
    assert [name for name in names if name.startswith("allreduce")] == ["allreduce-model-loss-0"]
    assert len(names) == 1 + 2 * 5
    assert {job.plan.loss for job in SMALL.settings()} == {0.0, 0.01, 0.05, 0.1, 0.2}


def test_without_loss_is_always_there() -> None:
    assert Drops(rates=(0.1,)).losses == [0.0, 0.1]


def test_the_learning_rate_is_chosen_without_loss_once_per_algorithm() -> None:
    study = Drops(task="digits", algorithms=NAMES, seeds=1, lrs=(0.1, 0.2, 0.4), samples=50)
    jobs = study.jobs()
    assert len(jobs) == 3 * 3
    assert {(job.plan.loss, job.plan.samples) for job in jobs} == {(0.0, 50)}

    def figures(name: str, _: int) -> dict[str, Any]:
        return {"accuracies": [0.95 if "relay-sgd-lr-0.2" in name or "d-psgd-lr-0.2" in name else 0.9]}

    finals = {job.name: job.plan for job in play(study, figures)[0] if not job.name.startswith("tune-")}
    assert {plan.lr for plan in finals.values()} == {0.2}
    assert finals["relay-sgd-loss-0.1-seed-0"].loss == 0.1


def test_or_at_every_loss_rate_anew() -> None:
    study = Drops(task="digits", algorithms=NAMES, seeds=1, lrs=(0.1, 0.2, 0.4), rates=(0.1,), retune=True)
    tuned = {job.name.partition("-lr-")[0]: job.plan.loss for job in study.jobs()}
    assert tuned == {
        "tune-allreduce-model-loss-0": 0.0,
        "tune-d-psgd-loss-0": 0.0,
        "tune-d-psgd-loss-0.1": 0.1,
        "tune-relay-sgd-loss-0": 0.0,
        "tune-relay-sgd-loss-0.1": 0.1,
    }


# --- what is told -----------------------------------------------------------------------------------------------------


def test_relay_stands_a_tenth_of_all_messages() -> None:
    story = tell(relay_sgd_loss_0=0.9)
    assert claim(story).text == "relay-sgd at 10 % loss comes within 1 point of none."
    assert claim(story).verdict == "holds"
    assert claim(story).ours == "90.0 % at 0 %, 90.0 % at 10 %: +0.0 points"


def test_an_aim_that_is_missed_is_said() -> None:
    story = tell(**{"relay_sgd_loss_0.1": 0.88})
    assert claim(story).verdict == "does not hold"
    assert "−2.0 points" in claim(story).ours


def test_more_loss_than_a_tenth_is_no_affair_of_the_claim() -> None:
    assert claim(tell(**{"relay_sgd_loss_0.2": 0.3})).verdict == "holds"


def test_where_a_tenth_was_not_tried_the_nearest_below_is_judged() -> None:
    story = tell(Drops(task="digits", algorithms=NAMES, seeds=1, epochs=2, lrs=(0.1,), rates=(0.02, 0.05, 0.5)))
    assert claim(story).text.startswith("relay-sgd at 5 % loss")
    story = tell(Drops(task="digits", algorithms=NAMES, seeds=1, epochs=2, lrs=(0.1,), rates=(0.5,)))
    assert claim(story).text.startswith("relay-sgd at 50 % loss")


def test_the_figure_has_a_line_per_algorithm_over_the_loss() -> None:
    story = tell(**{"d_psgd_loss_0.2": 0.6})
    (chart,) = [part for section in story.sections for part in section.parts if isinstance(part, Chart)]
    (axes,) = chart.draw(narrow=False).axes
    lines = {key.text: line for key, line in zip(chart.keys, axes.lines, strict=True)}
    assert list(lines["d-psgd"].get_xdata()) == pytest.approx([0, 1, 5, 10, 20])
    assert list(lines["d-psgd"].get_ydata()) == pytest.approx([90, 90, 90, 90, 60])
    assert list(lines["allreduce-model"].get_ydata()) == pytest.approx([90])  # it sends again what is lost


def test_the_table_has_no_figure_of_what_was_not_run() -> None:
    story = tell()
    (table,) = [part for section in story.sections for part in section.parts if isinstance(part, Table)]
    rows = {cells[0]: cells[2:] for cells in ([cell.text for cell in row] for row in table.rows)}
    assert rows["allreduce-model"][1:] == ["sent again"] * 4
    assert "sent again" not in rows["relay-sgd"]


def test_facts_say_how_much_each_stands() -> None:
    story = tell(**{"d_psgd_loss_0.05": 0.8})
    (bullets,) = [part for section in story.sections for part in section.parts if isinstance(part, Bullets)]
    assert bullets.texts == [
        "d-psgd stays within 1 point of its 90.0 % up to 1 %; at 5 %: 80.0 %.",
        "relay-sgd stays within 1 point of its 90.0 % up to 20 %, the most tried.",
        "What is lost is sent again by allreduce-model, so its accuracy stays as it is.",
    ]
    assert story.finding == (
        "With 20 % of all messages lost, accuracy changes by: d-psgd +0.0 points, relay-sgd +0.0 points."
    )


def test_figures_for_a_program_are_those_that_were_run() -> None:
    assert len(tell().figures) == len(SMALL.settings())
