"""The error every model refuses a shape with, and the layers that several models share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tutti.errors import UserError
from tutti.models.base import Norm, ResidualBlock, convolution, normalisation
from tutti.models.lenet_5 import LeNet5

NORMS: tuple[Norm, ...] = ("batch", "group")


def test_the_refusal_names_the_model_the_shape_and_what_would_work() -> None:
    error = LeNet5().refusal((1, 8, 8), "Cx32x32")
    assert isinstance(error, UserError)
    assert str(error) == "lenet-5 takes inputs of Cx32x32, not 1x8x8"


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (6, 6), (32, 32), (33, 11), (48, 24), (37, 1), (64, 32), (512, 32)]
)
def test_at_most_32_groups_and_all_of_one_size(channels: int, groups: int) -> None:
    layer = normalisation("group", channels)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


def test_group_norm_is_the_papers_formula() -> None:
    """(x - mean) / sqrt(variance + eps) over 64 / 32 = 2 channels and all pixels of one sample."""
    images = torch.randn(3, 64, 5, 4, dtype=torch.float64)
    pairs = images.reshape(3, 32, 2 * 5 * 4)
    mean, variance = pairs.mean(2, keepdim=True), pairs.var(2, unbiased=False, keepdim=True)
    expected = ((pairs - mean) / (variance + 1e-5).sqrt()).reshape(images.shape)
    torch.testing.assert_close(normalisation("group", 64).double()(images), expected)


@pytest.mark.parametrize("norm", NORMS)
def test_either_norm_has_a_scale_and_a_shift_per_channel(norm: Norm) -> None:
    assert [tuple(p.shape) for p in normalisation(norm, 48).parameters()] == [(48,), (48,)]
    assert bool(list(normalisation(norm, 48).buffers())) == (norm == "batch")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("kernel", "stride", "side"), [(1, 1, 8), (3, 1, 8), (1, 2, 4), (3, 2, 4)])
def test_a_convolution_divides_the_image_by_its_stride(norm: Norm, kernel: int, stride: int, side: int) -> None:
    layer = convolution(3, 32, kernel, norm, stride)
    assert layer(torch.zeros(2, 3, 8, 8)).shape == (2, 32, side, side)
    assert [tuple(p.shape) for p in layer.parameters()] == [(32, 3, kernel, kernel), (32,), (32,)]


@pytest.mark.parametrize("norm", NORMS)
def test_a_block_adds_its_shortcut(norm: Norm) -> None:
    inputs = torch.rand(2, 32, 4, 4)
    same = ResidualBlock(nn.Identity(), 32, 32, norm, stride=1)
    assert torch.equal(same(inputs), 2 * inputs)
    halved = ResidualBlock(nn.AvgPool2d(2), 32, 32, norm, stride=2)
    assert halved(inputs).shape == (2, 32, 2, 2)
    assert torch.equal(halved(inputs), (nn.AvgPool2d(2)(inputs) + halved.shortcut(inputs)).relu())
    with_more = ResidualBlock(convolution(32, 64, 1, norm), 32, 64, norm, stride=1)
    assert with_more(inputs).shape == (2, 64, 4, 4)
