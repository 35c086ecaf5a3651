"""Figures are those of the record; two runs are equal only within their noise."""

from __future__ import annotations

import math

import pytest
from sample_records import make_empty, make_record

from tutti.lab.figures import find_baseline, read_figures
from tutti.lab.record import Record


def equal(one: Record, other: Record) -> bool:
    first, second = read_figures([one, other], 26)
    assert first.equals(second) == second.equals(first)
    return first.equals(second)


def test_figures_are_the_records_own() -> None:
    record = make_record(step=0.010, exposed=0.002, hidden=0.001)
    figures = read_figures([record], 26)[0]
    assert (figures.label, figures.workers) == ("ddp", 4)
    assert (figures.accuracy, figures.loss) == (record.accuracy, record.loss)
    assert (figures.rate, figures.deviation) == record.samples_per_second
    assert figures.step == pytest.approx(0.010)
    assert (figures.compute, figures.exposed, figures.hidden) == pytest.approx((0.008, 0.002, 0.001))
    assert figures.quartiles == pytest.approx((0.0098, 0.0102))
    assert figures.samples == 64


def test_an_empty_record_has_no_figures() -> None:
    figures = read_figures([make_empty(), make_record(accuracies=())], 26)
    assert math.isnan(figures[0].step)
    assert math.isnan(figures[1].accuracy)
    assert not any(each.diverged for each in figures)
    assert not figures[0].equals(figures[0])
    assert math.isnan(figures[0].speed(figures[1]))


def test_within_the_quartiles_is_equal() -> None:
    assert equal(make_record(step=0.010), make_record("ring", step=0.0101))
    assert not equal(make_record(step=0.010), make_record("ring", step=0.011))


def test_noise_of_one_is_not_enough() -> None:
    """Who is steady is not as slow as who is slower on the whole and only now and then as fast."""
    assert equal(make_record(step=0.010, spread=0.005), make_record("ring", step=0.012, spread=0.005))
    assert not equal(make_record(step=0.010), make_record("ring", step=0.012, spread=0.005))
    assert not equal(make_record(step=0.012, spread=0.005), make_record("ring", step=0.010))


def test_one_step_has_no_noise() -> None:
    assert equal(make_record(steps=1), make_record("ring", steps=1))
    assert not equal(make_record(steps=1), make_record("ring", step=0.0101, steps=1))


def test_speed_counts_samples() -> None:
    slow, fast = read_figures([make_record(step=0.020, workers=2), make_record(step=0.010)], 26)
    assert fast.speed(slow) == pytest.approx(2.0)


def test_the_baseline_is_one_worker_or_the_first() -> None:
    with_one = read_figures([make_record("ring"), make_record("single", workers=1)], 26)
    assert find_baseline(with_one).label == "single"
    assert find_baseline(with_one[:1]).label == "ring"
