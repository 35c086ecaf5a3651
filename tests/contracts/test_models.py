"""The contract of every model found in the folder, with every choice it offers."""

from __future__ import annotations

import pytest
import torch
from catalogue import every
from torch import nn

from tutti.errors import UserError
from tutti.models.base import Model
from tutti.spec import names, parse

SHAPE, CLASSES, BATCH = (3, 32, 32), 10, 2


@pytest.fixture(scope="module", params=every(Model))
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


def has_batch_norm(model: Model) -> bool:
    return getattr(model, "norm", "") == "batch"


def test_only_batch_norm_keeps_buffers(model: Model) -> None:
    assert bool(list(build(model).buffers())) == has_batch_norm(model)


def test_only_batch_norm_lets_samples_see_each_other(model: Model) -> None:
    """While training: the first sample's scores beside two different neighbours, and alone where one is enough."""
    network = build(model)
    first, one, other = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))
    beside_one, beside_other = (network(torch.stack([first, sample]))[0] for sample in (one, other))
    assert torch.allclose(beside_one, beside_other, rtol=1e-4, atol=1e-5) != has_batch_norm(model)
    if not has_batch_norm(model):
        torch.testing.assert_close(network(first[None])[0], beside_one, rtol=1e-4, atol=1e-5)


def test_a_shape_that_cannot_work_is_refused_in_one_sentence(model: Model) -> None:
    with pytest.raises(UserError, match=rf"^{model.name} takes inputs of .*, not 5$"):
        model.build((5,), CLASSES)
