"""What all studies are made with: options, seeds, and what is told of several runs of one setting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pytest
from sample_records import make_record
from sample_results import make_results

from tutti.errors import UserError
from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story
from tutti.lab.report.parts import Cell
from tutti.lab.studies.base import Option, Outcome, Spread, Study, find, options_of
from tutti.spec import Count, Range, SpecError


@dataclass(frozen=True)
class Toy(Study):
    title: ClassVar[str] = "A toy"
    question: ClassVar[str] = "What a toy does."
    quick: ClassVar = {"seeds": 1, "rates": (1.0,)}

    workers: Annotated[Count, "how many"] = 8
    steps: Annotated[Count, "of every run"] = 200
    rates: Annotated[tuple[Annotated[float, Range(least=0)], ...], "how fast"] = (0.5, 1.0)
    shape: Annotated[Literal["round", "square"], "of the wheels"] = "round"

    def settings(self) -> list[Job]:
        return [Job(f"at-{rate}", "ring", self.plan(steps=self.steps, lr=rate), self.workers) for rate in self.rates]

    def tell(self, results: Results) -> Story:
        return Story("It goes.", [])


def option(name: str) -> Option:
    return next(each for each in options_of(Toy) if each.name == name)


# --- options ----------------------------------------------------------------------------------------------------------


def test_fields_are_options_with_two_defaults() -> None:
    assert [each.name for each in options_of(Toy)] == ["task", "seeds", "workers", "steps", "rates", "shape"]
    assert (option("seeds").usual, option("seeds").quick) == (3, 1)
    assert (option("rates").usual, option("rates").quick) == ((0.5, 1.0), (1.0,))
    assert (option("workers").usual, option("workers").quick) == (8, 8)
    assert option("shape").text == "of the wheels"


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("workers", "5", 5),
        ("task", "mnist(samples=9, test=3)", "mnist(samples=9, test=3)"),
        ("rates", "0.1, 2", (0.1, 2.0)),
        ("rates", "3", (3.0,)),
        ("shape", "square", "square"),
    ],
)
def test_what_is_typed_becomes_a_value(name: str, word: str, value: object) -> None:
    assert option(name).read(word) == value


@pytest.mark.parametrize(
    ("name", "word", "sentence"),
    [
        ("workers", "0", "it must be at least 1, not 0"),
        ("seeds", "few", "it takes a whole number such as 8, not 'few'"),
        ("rates", "1,-1", "it must be at least 0, not -1"),
        ("rates", "1,,2", "it takes a number such as 0.1, not ''"),
        ("shape", "oval", "it is one of round, square, not 'oval'"),
    ],
)
def test_what_cannot_be_read_is_said(name: str, word: str, sentence: str) -> None:
    with pytest.raises(SpecError) as error:
        option(name).read(word)
    assert error.value.message == sentence


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_every_setting_with_one_seed_before_the_next() -> None:
    jobs = Toy(seeds=2, workers=3).jobs()
    assert [(job.name, job.plan.seed) for job in jobs] == [
        ("at-0.5-seed-0", 0),
        ("at-1.0-seed-0", 0),
        ("at-0.5-seed-1", 1),
        ("at-1.0-seed-1", 1),
    ]
    assert {job.plan.lr for job in jobs} == {0.5, 1.0}


def test_more_seeds_leave_the_jobs_of_the_first_as_they_were() -> None:
    assert Toy(seeds=4).jobs()[:4] == Toy(seeds=2).jobs()


def test_records_come_back_by_setting() -> None:
    study = Toy(seeds=3)
    accuracies = {"at-0.5-seed-0": 0.1, "at-0.5-seed-1": 0.2, "at-0.5-seed-2": 0.6}
    results = make_results(study.jobs(), 1, lambda name, _: {"accuracies": [accuracies.get(name, 0.9)]})
    outcomes = study.read(results)
    assert list(outcomes) == ["at-0.5", "at-1.0"]
    assert outcomes["at-0.5"].accuracy.values == [0.1, 0.2, 0.6]
    assert outcomes["at-1.0"].accuracy.mean == pytest.approx(0.9)


def test_the_plan_is_the_tasks_own() -> None:
    plan = Toy(task=" digits ").plan(steps=7, lr=0.5)
    assert (plan.task, plan.model, plan.epochs, plan.steps, plan.lr) == ("digits", "lenet-5", None, 7, 0.5)
    with pytest.raises(UserError, match="there is no task 'nonsense'"):
        Toy(task="nonsense").plan()


def test_the_page_says_how_often_and_what_the_spread_is() -> None:
    said = Toy(seeds=5).introduce("tutti study toy")
    assert said.startswith("What a toy does. Told from 5 runs of every setting, made by `tutti study toy`")
    assert "mean ± sample standard deviation over 5 seeds" in said
    assert "±" not in Toy(seeds=1).introduce("tutti study toy")


# --- what came out ----------------------------------------------------------------------------------------------------


def test_a_spread_is_mean_and_deviation_of_a_sample() -> None:
    spread = Spread([0.90, 0.94])
    assert spread.mean == pytest.approx(0.92)
    assert spread.deviation == pytest.approx(0.04 / math.sqrt(2))
    assert spread.write(1, 100) == "92.0 ± 2.8"
    assert Spread([0.9]).write(1, 100) == "90.0"


def outcome(*ends: tuple[float, float]) -> Outcome:
    return Outcome([make_record(accuracies=[accuracy], loss=loss) for accuracy, loss in ends])


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e9])
def test_a_run_that_diverged_leaves_no_figure(loss: float) -> None:
    both, one, none = outcome((0.1, loss), (0.1, loss)), outcome((0.9, 0.2), (0.1, loss)), outcome((0.9, 0.2))
    assert [each.diverged for each in (both, one, none)] == [2, 1, 0]
    assert both.write(both.accuracy, 1, 100).text == "diverged"
    assert one.write(one.accuracy, 1, 100).text == "diverged in 1 of 2"
    assert none.write(none.accuracy, 1, 100) == Cell("90.0", 90.0)
    assert (both.worst, one.worst, none.worst) == (0.0, 0.0, 0.9)


def test_the_worst_seed_decides() -> None:
    assert outcome((0.9, 0.1), (0.7, 0.3), (0.8, 0.2)).worst == 0.7


def test_distances_have_two_digits_and_curves_the_epochs_that_all_have() -> None:
    records = [make_record(accuracies=[0.1, 0.2], distances=[1.0, away]) for away in (0.00012, 0.00014)]
    each = Outcome([records[0], make_record(accuracies=[0.3], distances=[1.0])])
    assert Outcome(records).write_distance().text == "0.00013 ± 1.4e-05"
    assert Outcome(records[:1]).write_distance().text == "0.00012"
    assert outcome((0.9, 0.1)).write_distance().text == "–"
    assert {epoch: spread.values for epoch, spread in each.curve.items()} == {1: [0.1, 0.3]}


def test_losses_of_training_and_test_are_apart() -> None:
    each = outcome((0.9, 0.25), (0.9, 0.75))
    assert (each.loss.mean, each.train_loss.mean) == (0.5, 0.5)
    late = make_record(loss=0.2)
    for measurement in late.measurements:
        measurement["losses"] = [9.0] * 31 + [1.0] * 10
    assert Outcome([late]).train_loss.values == [1.0]


def test_how_far_losses_are_apart_is_told_seed_by_seed() -> None:
    one, other = outcome((0.9, 0.25), (0.9, 0.5)), outcome((0.9, 0.25), (0.9, 0.75))
    assert one.apart(one) == 0
    assert one.apart(other) == other.apart(one) == 0.25
    assert math.isnan(one.apart(outcome((0.9, 0.25), (0.9, math.nan))))


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(UserError, match="there is no study 'agregation'; did you mean 'aggregation'"):
        find("agregation")
