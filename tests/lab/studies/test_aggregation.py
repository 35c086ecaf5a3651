"""The study of aggregators told from figures by hand: every verdict turns with them."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from sample_results import make_results

from tutti.errors import UserError
from tutti.lab.inquiry import Story
from tutti.lab.report.parts import Bullets, Table
from tutti.lab.studies.aggregation import Aggregation
from tutti.lab.studies.base import Claim
from tutti.spec import names

SMALL = Aggregation(aggregators=("sum", "median", "krum"), bad=("sign-flip", "nan"), seeds=2)
LOST = {"accuracies": [0.1], "loss": math.nan}


def tell(study: Aggregation = SMALL, **changes: dict[str, Any]) -> Story:
    """All reach 95 % but what is lost everywhere: linear ones to NaN, and the sum of parameters. `changes` are by the
    beginning of the setting's name, with underscores."""

    def figures(name: str, _: int) -> dict[str, Any]:
        usual: dict[str, Any] = {"accuracies": [0.95], "loss": 0.1}
        linear = "-mean-" in name or "-sum-" in name
        if (linear and "-nan-" in name) or name.startswith("parameters-sum-"):
            usual = dict(LOST)
        for begin, change in changes.items():
            if name.startswith(begin.replace("_", "-")):
                usual = {**usual, **change}
        return usual

    return study.tell(make_results(study.jobs(), 1, figures))


def claim(story: Story, begin: str) -> Claim:
    (found,) = [claim for claim in story.claims if claim.text.startswith(begin)]
    assert isinstance(found, Claim)
    return found


def rows(story: Story, section: str) -> dict[str, dict[str, str]]:
    (table,) = [p for s in story.sections if s.title == section for p in s.parts if isinstance(p, Table)]
    header = [text.replace("\n", " ") for text in table.header]
    texts = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    return {row[0]: dict(zip(header, row, strict=True)) for row in texts}


def facts(story: Story) -> list[str]:
    (bullets,) = [part for section in story.sections for part in section.parts if isinstance(part, Bullets)]
    return [*bullets.texts]


# --- what is run ------------------------------------------------------------------------------------------------------


def test_every_aggregator_there_is_takes_part() -> None:
    ways = {way.aggregator for way in Aggregation().ways}
    assert ways == set(names("aggregators"))
    assert {"sum", "median", "krum", "adasum", "sign-vote"} <= ways


def test_a_new_file_joins_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(importlib.import_module("tutti.aggregators.sum").__file__ or "").read_text()
    (tmp_path / "whole.py").write_text(text.replace("class Sum", "class Whole"))
    package = importlib.import_module("tutti.aggregators")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    try:
        assert "whole" in [way.label for way in Aggregation().ways]
    finally:
        sys.modules.pop("tutti.aggregators.whole", None)


def test_the_mean_is_always_there_and_first() -> None:
    assert [way.label for way in SMALL.ways] == ["mean", "sum", "sum at lr/8", "krum", "median"]


def test_settings_are_the_whole_grid() -> None:
    settings = {job.name: job for job in SMALL.settings()}
    assert len(settings) == 5 * 2 * 3
    honest, bad = settings["gradients-median-honest"], settings["parameters-median-nan"]
    assert honest.spec == "gradient-average(all-reduce(star, median), bucket=1GiB, overlap=false)"
    assert bad.spec == "model-average(corrupt(all-reduce(star, median), worker=1, by=nan), bucket=1GiB)"
    assert {(job.workers, job.engine) for job in settings.values()} == {(8, "threads")}


def test_only_the_learning_rate_is_corrected_and_only_where_steps_are_longer() -> None:
    plans = {job.name: job.plan for job in Aggregation(workers=9).settings()}
    usual = plans["gradients-mean-honest"]
    rates = {name: usual.lr / plan.lr for name, plan in plans.items() if "corrected" in name}
    divisors = {"sum": 9, "adasum": 3, "sign-vote": 100}
    assert {name.partition("-corrected")[0].partition("-")[2] for name in rates} == set(divisors)
    for name, divisor in divisors.items():
        assert rates[f"gradients-{name}-corrected-honest"] == pytest.approx(divisor)
    assert {plan.lr for name, plan in plans.items() if "corrected" not in name} == {usual.lr} == {0.1}


def test_the_learning_rate_can_be_chosen() -> None:
    rates = {job.plan.lr for job in Aggregation(workers=5, aggregators=("sum",), lr=0.5).settings()}
    assert rates == {0.5, 0.1}


def test_the_same_behaviour_twice_is_once() -> None:
    assert Aggregation(bad=("nan", "huge", "nan")).sent == ("honest", "nan", "huge")


def test_too_few_workers_for_an_aggregator_are_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match=r"'krum' needs at least .* 5 workers, and there are 4"):
        Aggregation(workers=4, aggregators=("krum",))
    assert Aggregation(workers=4, aggregators=("sum",)).ways


def test_an_aggregator_may_have_parameters() -> None:
    study = Aggregation(aggregators=("trimmed-mean(trim=2)",))
    assert [way.label for way in study.ways] == ["mean", "trimmed-mean(2)"]
    assert "gradients-trimmed-mean-2-honest" in [job.name for job in study.settings()]


# --- the finding and the facts ----------------------------------------------------------------------------------------


def test_the_finding_counts_who_withstands() -> None:
    assert tell().finding == (
        "The mean of 8 honest workers' gradients reaches 95.0 %; with one of them bad, 2 of 5 ways to combine "
        "gradients (krum and median) and 2 of 5 ways to combine parameters (krum and median) come within 5 points of "
        "that whatever it sends."
    )


def test_one_seed_that_is_lost_is_enough_to_fall() -> None:
    finding = tell(parameters_krum_nan_seed_1={"accuracies": [0.5]}).finding
    assert "ways to combine gradients (krum and median)" in finding
    assert "1 of 5 ways to combine parameters (median)" in finding


def test_facts_tell_who_falls_behind_and_who_is_spoilt() -> None:
    told = facts(tell(gradients_krum_honest={"accuracies": [0.8]}))
    assert told[0] == ("Where all are honest, these ways to combine gradients fall behind the mean: krum (80.0 %).")
    assert told[1].endswith("fall behind the mean: sum (diverged) and sum at lr/8 (diverged).")
    flips, nothing = told[2:4]
    assert flips == (
        "Where one worker flips its signs, all 4 ways to combine gradients that keep up without it keep up with it."
    )
    assert nothing == (
        "Where one worker sends NaN, 3 of the 4 ways to combine gradients that keep up without it fall behind: "
        "mean (diverged), sum (diverged) and sum at lr/8 (diverged)."
    )
    assert told[-1] == (
        "Where all are honest, sum at lr/8: 95.0 % on gradients (95.0 % at lr), diverged on parameters (diverged at "
        "lr)."
    )


def test_a_fact_where_nobody_falls_behind() -> None:
    good = {"accuracies": [0.95], "loss": 0.1}
    assert facts(tell(parameters_sum=good))[1] == (
        "Where all are honest, every way to combine parameters keeps up with the mean."
    )


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "verdict", "said"),
    [(0.1, "holds", "0.0e+00"), (0.3, "does not hold", "2.0e-01"), (math.nan, "does not hold", "without end")],
)
@pytest.mark.parametrize(
    ("setting", "begin"),
    [("gradients_sum_corrected_honest", "The sum of gradients"), ("parameters_mean_honest", "The mean of parameters")],
)
def test_two_computations_are_one_or_not(setting: str, begin: str, loss: float, verdict: str, said: str) -> None:
    found = claim(tell(**{setting: {"loss": loss}}), begin)
    assert found.verdict == verdict
    assert f"in 20 steps {said};" in found.ours


def test_the_sum_of_parameters_is_lost_or_not() -> None:
    lost = claim(tell(), "The sum of parameters")
    assert (lost.verdict, lost.ours) == ("holds", "diverged at lr, diverged at lr/8")
    mended = tell(parameters_sum_corrected_honest={"accuracies": [0.9], "loss": 0.1})
    assert claim(mended, "The sum of parameters").verdict == "does not hold"
    assert claim(mended, "The sum of parameters").ours == "diverged at lr, 90.0 % at lr/8"


def test_linear_combinations_fall_or_stand() -> None:
    fallen = claim(tell(), "One bad worker is enough")
    assert fallen.verdict == "holds"
    assert fallen.ours.endswith("mean diverged (NaN), sum diverged (NaN), sum at lr/8 diverged (NaN)")
    standing = claim(tell(gradients_mean_nan={"accuracies": [0.95], "loss": 0.1}), "One bad worker is enough")
    assert standing.verdict == "does not hold"
    assert "did not bring down mean" in standing.why


@pytest.mark.parametrize("place", ["gradients", "parameters"])
def test_those_made_for_it_withstand_or_not(place: str) -> None:
    begin = f"Aggregators made for it withstand one bad worker, on {place}"
    good = claim(tell(), begin)
    assert (good.verdict, good.expected) == ("holds", "within 5 points of 95.0 %: krum and median")
    assert good.ours == "lowest accuracy of any with any seed 95.0 %"
    lost = claim(tell(**{f"{place}_median_sign_flip": {"accuracies": [0.85]}}), begin)
    assert (lost.verdict, lost.ours) == ("does not hold", "1 of 2 do not: median 85.0 % (sign-flip)")
    assert lost.why == "Short of it only with the bad one: median."
    never = claim(tell(**{f"{place}_krum": {"accuracies": [0.5]}}), begin)
    assert never.why == "Short of it with honest workers too: krum."


def test_nothing_is_claimed_of_what_does_not_take_part() -> None:
    texts = [claim.text for claim in tell(Aggregation(aggregators=("adasum",), seeds=1)).claims]
    assert not [text for text in texts if "sum of" in text or "made for it" in text]
    assert len(texts) == 2


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_tables_have_every_way_by_what_is_sent() -> None:
    story = tell(gradients_krum_sign_flip_seed_0={"accuracies": [0.91]}, gradients_median_nan_seed_0=LOST)
    shown = rows(story, "On gradients")
    assert list(shown) == ["mean", "sum", "sum at lr/8", "krum", "median"]
    assert shown["krum"] == {
        "aggregator": "krum",
        "honest": "95.0 ± 0.0",
        "sign-flip": "93.0 ± 2.8",
        "NaN": "95.0 ± 0.0",
    }
    assert shown["mean"]["NaN"] == "diverged"
    assert shown["median"]["NaN"] == "diverged in 1 of 2"
    assert rows(story, "On parameters")["sum"]["honest"] == "diverged"


def test_the_model_is_held_against_the_means() -> None:
    story = tell(parameters_median_honest={"loss": 0.35})
    (table,) = [p for s in story.sections if s.title == "What becomes of the model" for p in s.parts]
    assert isinstance(table, Table)
    texts = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    assert texts[0] == ["mean", "gradients", "0.100 ± 0.000", "0.100 ± 0.000", "0.0e+00"]
    assert texts[-1] == ["median", "parameters", "0.350 ± 0.000", "0.350 ± 0.000", "2.5e-01"]
    assert texts[6] == ["sum", "parameters", "diverged", "diverged", "without end"]


def test_figures_are_those_of_every_run() -> None:
    story = tell(gradients_median_nan_seed_1=LOST)
    (found,) = [
        each
        for each in story.figures
        if (each["aggregator"], each["on"], each["sent"]) == ("median", "gradients", "nan")
    ]
    assert found["accuracies"] == [0.95, 0.1]
    assert found["losses"] == [0.1, None]
    assert (found["diverged"], found["lr_divided_by"]) == (1, 1.0)
    assert len(story.figures) == len(SMALL.settings())
