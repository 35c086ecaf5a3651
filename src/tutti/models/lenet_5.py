"""LeNet-5 for images of digits.

Three 5x5 convolutions of 6, 16 and 120 maps with average pooling between them, then 84 units: 61,706 parameters for
1x32x32 and ten classes. As in most reproductions the second convolution sees all six maps, pooling has no weights and
the output is linear.

Paper: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition" (1998).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from tutti.models.base import Model


@dataclass
class LeNet5(Model):
    """The first convolutional network for digits."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3 or shape[1:] != (32, 32):
            raise self.refusal(shape, "Cx32x32")
        return nn.Sequential(
            *(nn.Conv2d(shape[0], 6, kernel_size=5), nn.Tanh(), nn.AvgPool2d(2)),
            *(nn.Conv2d(6, 16, kernel_size=5), nn.Tanh(), nn.AvgPool2d(2)),
            *(nn.Conv2d(16, 120, kernel_size=5), nn.Tanh(), nn.Flatten()),
            *(nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, classes)),
        )
