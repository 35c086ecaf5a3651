"""ResNet-18 for small images (He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016).

The variant usual on CIFAR-10: a 3x3 stem of stride one without max-pool, then four stages of two basic blocks with
64, 128, 256 and 512 channels, and global average pooling, so any image size works: 11,173,962 parameters (44.7 MB)
for three channels and ten classes. A block computes

    y = relu(F(x) + shortcut(x)),    F = bn(conv3x3(relu(bn(conv3x3(x)))))

where the shortcut is x itself, or bn(conv1x1(x)) where channels or stride change.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tutti.models.base import Model

_WIDTHS = (64, 128, 256, 512)


@dataclass
class ResNet18(Model):
    """Many layers with batch norm: many small tensors beside a few large ones."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3:
            raise self.refusal(shape, "CxHxW, such as 3x32x32")
        layers: list[nn.Module] = [_convolution(shape[0], _WIDTHS[0], kernel=3), nn.ReLU()]
        channels = _WIDTHS[0]
        for width in _WIDTHS:
            layers.append(_Block(channels, width, stride=1 if width == channels else 2))
            layers.append(_Block(width, width, stride=1))
            channels = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class _Block(nn.Module):
    """The basic block: two 3x3 convolutions and a shortcut around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        changes = stride != 1 or channels != width
        first = _convolution(channels, width, kernel=3, stride=stride)
        self.residual = nn.Sequential(first, nn.ReLU(), _convolution(width, width, kernel=3))
        self.shortcut = _convolution(channels, width, kernel=1, stride=stride) if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.relu(self.residual(inputs) + self.shortcut(inputs))
        return outputs


def _convolution(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the image size (divided by the stride), with batch norm, whose shift replaces a bias."""
    convolution = nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width))
