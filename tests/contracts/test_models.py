"""The contract of every model found in the folder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tutti.errors import UserError
from tutti.models.base import Model
from tutti.spec import names, parse

SHAPE, CLASSES, BATCH = (3, 32, 32), 10, 2


@pytest.fixture(scope="module", params=names("models"))
def model(request: pytest.FixtureRequest) -> Model:
    torch.set_num_threads(1)
    return parse(request.param, Model)


def build(model: Model, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return model.build(SHAPE, CLASSES)


def test_its_text_parses_back(model: Model) -> None:
    assert model.name in names("models")
    assert parse(str(model), Model) == model


def test_it_gives_a_score_per_class(model: Model) -> None:
    outputs = build(model)(torch.rand(BATCH, *SHAPE))
    assert outputs.shape == (BATCH, CLASSES)
    assert outputs.isfinite().all()


def test_every_parameter_gets_a_dense_gradient(model: Model) -> None:
    network = build(model)
    network(torch.rand(BATCH, *SHAPE)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.layout == torch.strided
        assert parameter.grad.isfinite().all()


def test_equal_seeds_build_equal_weights(model: Model) -> None:
    first, again, other = (build(model, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_computing_is_deterministic(model: Model) -> None:
    inputs = torch.rand(BATCH, *SHAPE)
    assert torch.equal(build(model)(inputs), build(model)(inputs))


def test_a_shape_that_cannot_work_is_refused_in_one_sentence(model: Model) -> None:
    with pytest.raises(UserError, match=rf"^{model.name} takes inputs of .*, not 5$"):
        model.build((5,), CLASSES)
