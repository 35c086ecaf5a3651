"""ResNet-18 has eighteen layers with weights, takes any image size, and its shortcuts carry the input on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tutti.errors import UserError
from tutti.models.base import Norm
from tutti.models.resnet_18 import ResNet18


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_known_size(norm: Norm) -> None:
    network = ResNet18(norm).build((3, 32, 32), 10)
    assert sum(p.numel() for p in network.parameters()) == 11_173_962


def test_seventeen_convolutions_three_projections_and_one_linear() -> None:
    network = ResNet18().build((3, 32, 32), 10)
    kernels = [m.kernel_size for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert (kernels.count((3, 3)), kernels.count((1, 1))) == (17, 3)
    assert sum(isinstance(m, nn.Linear) for m in network.modules()) == 1


def test_the_stem_keeps_the_resolution_and_the_stages_divide_it_by_eight() -> None:
    network = ResNet18().build((3, 32, 32), 10)
    assert isinstance(network, nn.Sequential)
    images = torch.zeros(1, 3, 32, 32)
    assert network[:2](images).shape == (1, 64, 32, 32)
    assert network[:-3](images).shape == (1, 512, 4, 4)


def test_a_block_without_its_residual_passes_its_input_on() -> None:
    network = ResNet18().build((3, 32, 32), 10)
    assert isinstance(network, nn.Sequential)
    block = network[2].eval()
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    inputs = torch.rand(1, 64, 4, 4)
    assert torch.equal(block(inputs), inputs)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 20, 28), (3, 64, 64)])
def test_any_image_size_works(shape: tuple[int, ...]) -> None:
    assert ResNet18().build(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(UserError, match="resnet-18 takes inputs of CxHxW, such as 3x32x32, not 784"):
        ResNet18().build((784,), 10)
