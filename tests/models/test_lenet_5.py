"""LeNet-5 has the layers and the parameters of the paper."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tutti.errors import UserError
from tutti.models.lenet_5 import LeNet5


def test_parameters_of_the_paper() -> None:
    network = LeNet5().build((1, 32, 32), 10)
    by_layer = [p.numel() for p in network.parameters()]
    assert [w + b for w, b in zip(by_layer[::2], by_layer[1::2], strict=True)] == [156, 2416, 48120, 10164, 850]
    assert sum(by_layer) == 61_706


def test_the_last_convolution_sees_the_whole_image() -> None:
    network = LeNet5().build((1, 32, 32), 10)
    assert isinstance(network, nn.Sequential)
    features = network[:7](torch.zeros(2, 1, 32, 32))
    assert features.shape == (2, 120, 1, 1)


def test_channels_and_classes_are_those_asked_for() -> None:
    assert LeNet5().build((3, 32, 32), 7)(torch.zeros(4, 3, 32, 32)).shape == (4, 7)


@pytest.mark.parametrize("shape", [(1, 8, 8), (32, 32), (1, 32, 31), (1, 1, 32, 32)])
def test_other_sizes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="lenet-5 takes inputs of Cx32x32"):
        LeNet5().build(shape, 10)
