"""ResNet-50 has fifty layers with weights, takes any image size, and its shortcuts carry the input on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tutti.errors import UserError
from tutti.models.base import Norm
from tutti.models.resnet_50 import ResNet50


def parameters_of_the_paper() -> int:
    """Table 1 of the paper added up: weights of the convolutions, two per channel for the norms, one linear layer."""
    total, channels = 64 * 3 * 3 * 3 + 2 * 64, 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        total += channels * 4 * width + 2 * 4 * width  # the projection in front of the stage
        for _ in range(blocks):
            convolutions = channels * width + 9 * width * width + width * 4 * width
            total += convolutions + 2 * (width + width + 4 * width)
            channels = 4 * width
    return total + channels * 10 + 10


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_known_size(norm: Norm) -> None:
    network = ResNet50(norm).build((3, 32, 32), 10)
    numel = sum(p.numel() for p in network.parameters())
    assert numel == parameters_of_the_paper() == 23_520_842
    assert round(4 * numel / 1e6, 1) == 94.1
    assert len(list(network.parameters())) == 161


def test_forty_nine_convolutions_four_projections_and_one_linear() -> None:
    network = ResNet50().build((3, 32, 32), 10)
    kernels = [m.kernel_size for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert (kernels.count((3, 3)), kernels.count((1, 1))) == (17, 32 + 4)
    assert sum(isinstance(m, nn.Linear) for m in network.modules()) == 1


def test_the_stem_keeps_the_resolution_and_the_stages_divide_it_by_eight() -> None:
    network = ResNet50().build((3, 32, 32), 10)
    assert isinstance(network, nn.Sequential)
    images = torch.zeros(1, 3, 32, 32)
    assert network[:2](images).shape == (1, 64, 32, 32)
    stages = [network[: 2 + blocks](images).shape for blocks in (3, 7, 13, 16)]
    assert stages == [(1, 256, 32, 32), (1, 512, 16, 16), (1, 1024, 8, 8), (1, 2048, 4, 4)]


def test_a_block_without_its_residual_passes_its_input_on() -> None:
    network = ResNet50().build((3, 32, 32), 10)
    assert isinstance(network, nn.Sequential)
    block = network[3].eval()
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    inputs = torch.rand(1, 256, 4, 4)
    assert torch.equal(block(inputs), inputs)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 20, 28)])
def test_any_image_size_works(shape: tuple[int, ...]) -> None:
    assert ResNet50().build(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(UserError, match="resnet-50 takes inputs of CxHxW, such as 3x32x32, not 784"):
        ResNet50().build((784,), 10)
