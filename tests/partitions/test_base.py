"""The tools that partitions share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tutti.errors import UserError
from tutti.partitions.base import Partition, cut_evenly, draw_leanings, group, hand_out, normalise
from tutti.spec import parse


@pytest.mark.parametrize(("count", "parts"), [(0, 3), (2, 3), (3, 3), (10, 3), (100, 7)])
def test_even_cuts_add_up_and_differ_by_one(count: int, parts: int) -> None:
    sizes = cut_evenly(count, parts).tolist()
    assert len(sizes) == parts
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1


def test_a_group_holds_every_sample_class_by_class_in_an_order_of_its_own() -> None:
    classes = np.arange(60) % 3
    order = group(classes, np.random.default_rng(0))
    assert classes[order].tolist() == [0] * 20 + [1] * 20 + [2] * 20
    assert sorted(order.tolist()) == list(range(60))
    assert order[:20].tolist() != sorted(order[:20].tolist())


def test_everybody_is_handed_what_it_owns() -> None:
    shares = hand_out(np.array([5, 3, 4, 1]), np.array([1, 0, 1, 1]), 3)
    assert [share.tolist() for share in shares] == [[3], [5, 4, 1], []]


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 20.0])
def test_leanings_are_dirichlet(alpha: float) -> None:
    """Mean 1/K and variance (K - 1) / (K² (K alpha + 1)) of every proportion."""
    proportions = normalise(draw_leanings((40_000, 4), alpha, np.random.default_rng(0)))
    assert proportions.sum(1) == pytest.approx(1)
    assert proportions.mean(0) == pytest.approx(0.25, abs=0.01)
    assert proportions.var(0) == pytest.approx(3 / (16 * (4 * alpha + 1)), rel=0.05)


def test_leanings_of_the_smallest_alpha_are_finite_and_differ() -> None:
    leanings = draw_leanings((100, 10), 1e-4, np.random.default_rng(0))
    assert np.isfinite(leanings).all()
    assert len(np.unique(leanings)) == 1000
    assert np.isfinite(normalise(leanings)).all()


@pytest.mark.parametrize("targets", [torch.rand(20), torch.zeros(20, 3, dtype=torch.int64)])
@pytest.mark.parametrize("spec", ["dirichlet", "by-class"])
def test_targets_that_are_no_classes_are_refused(spec: str, targets: Tensor) -> None:
    with pytest.raises(UserError, match=r"needs one class per sample.*use iid or quantity-skew$"):
        parse(spec, Partition).split(targets, 2, 0)


@pytest.mark.parametrize("spec", ["iid", "quantity-skew"])
def test_who_does_not_ask_for_classes_takes_any_targets(spec: str) -> None:
    assert sum(map(len, parse(spec, Partition).split(torch.rand(20, 3), 3, 0))) == 20


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("dirichlet(0)", "alpha of 'dirichlet' must be between 0.0001 and 1000000, not 0"),
        ("by-class(0)", "shards of 'by-class' must be at least 1, not 0"),
        ("quantity-skew(1, least=2)", "least of 'quantity-skew' must be between 0 and 1, not 2"),
        ("dirichlet(much)", "alpha of 'dirichlet' takes a number such as 0.1, not 'much'"),
        ("diriclet", "there is no partition 'diriclet'; did you mean 'dirichlet'?"),
    ],
)
def test_mistakes_get_a_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(spec, Partition)
    assert str(caught.value).splitlines()[0] == sentence
