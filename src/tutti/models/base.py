"""Models: networks that are trained, built for the shape and the classes of a task; and the layers several share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from tutti.errors import UserError
from tutti.spec import Member

Norm = Literal["batch", "group"]

_MOST_GROUPS = 32  # as in the paper of group norm


@dataclass
class Model(Member):
    """Builds a network; its weights depend on torch's random state and on nothing else."""

    axis: ClassVar[str] = "models"
    noun: ClassVar[str] = "model"

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new network from one input of this shape to one score per class."""

    def refusal(self, shape: tuple[int, ...], wanted: str) -> UserError:
        """The error for a shape that cannot work, naming what would."""
        return UserError(f"{self.name} takes inputs of {wanted}, not {'x'.join(map(str, shape))}")


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """Batch norm (Ioffe, Szegedy, 2015), or group norm (Wu, He, 2018): a scale and a shift per channel in both.

    Group norm sees one sample at a time and keeps no running means, so nothing but weights has to agree.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    groups = next(count for count in range(min(_MOST_GROUPS, channels), 0, -1) if channels % count == 0)
    return nn.GroupNorm(groups, channels)


def convolution(channels: int, width: int, kernel: int, norm: Norm, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the image size (divided by the stride), and a norm, whose shift replaces a bias."""
    layer = nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(layer, normalisation(norm, width))


class ResidualBlock(nn.Module):
    """relu(residual(x) + shortcut(x)), where the shortcut is a 1x1 convolution if channels or stride change, else x."""

    def __init__(self, residual: nn.Module, channels: int, width: int, norm: Norm, stride: int) -> None:
        super().__init__()
        changes = stride != 1 or channels != width
        self.residual = residual
        self.shortcut = convolution(channels, width, 1, norm, stride) if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.relu(self.residual(inputs) + self.shortcut(inputs))
        return outputs
