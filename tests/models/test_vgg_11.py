"""VGG-11 has eleven layers with weights and ends at 512 features."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tutti.errors import UserError
from tutti.models.base import Norm
from tutti.models.vgg_11 import VGG11


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_known_size(norm: Norm) -> None:
    network = VGG11(norm).build((3, 32, 32), 10)
    numel = sum(p.numel() for p in network.parameters())
    assert numel == 9_231_114
    assert round(4 * numel / 1e6, 1) == 36.9


@pytest.mark.parametrize(("norm", "layer"), [("batch", nn.BatchNorm2d), ("group", nn.GroupNorm)])
def test_eight_convolutions_each_with_its_norm_five_pools_one_linear(norm: Norm, layer: type[nn.Module]) -> None:
    layers = list(VGG11(norm).build((3, 32, 32), 10).modules())
    counts = [sum(isinstance(m, kind) for m in layers) for kind in (nn.Conv2d, layer, nn.MaxPool2d, nn.Linear)]
    assert counts == [8, 8, 5, 1]


def test_channels_and_classes_are_those_asked_for() -> None:
    assert VGG11().build((1, 32, 32), 7)(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(3, 16, 16), (3, 224, 224), (3072,)])
def test_other_sizes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="vgg-11 takes inputs of Cx32x32"):
        VGG11().build(shape, 10)
