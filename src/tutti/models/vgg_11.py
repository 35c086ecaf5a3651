"""VGG-11 for small images: configuration A of the paper.

The variant usual on CIFAR-10: eight 3x3 convolutions, each with batch norm and ReLU, five max-pools down to 1x1, and
one linear layer in place of three: 9,231,114 parameters (36.9 MB) for ten classes. `norm=group` puts group norm in
place of batch norm, with as many parameters and no buffers.

Paper: Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition" (2015); Ioffe, Szegedy,
"Batch normalization: accelerating deep network training by reducing internal covariate shift" (2015); Wu, He, "Group
normalization" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from tutti.models.base import Model, Norm, normalisation

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


@dataclass
class VGG11(Model):
    """Few layers and many weights: heavy on the network for the time it computes."""

    norm: Norm = "batch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3 or shape[1:] != (32, 32):
            raise self.refusal(shape, "Cx32x32")
        layers: list[nn.Module] = []
        channels = shape[0]
        for widths in _STAGES:
            for width in widths:
                convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1)
                layers += [convolution, normalisation(self.norm, width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, classes))
