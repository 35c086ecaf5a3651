"""ResNet-18 for small images.

The variant usual on CIFAR-10: a 3x3 stem of stride one without max-pool, then four stages of two basic blocks with
64, 128, 256 and 512 channels, and global average pooling, so any image size works: 11,173,962 parameters (44.7 MB)
for three channels and ten classes. A block computes

    y = relu(F(x) + shortcut(x)),    F = norm(conv3x3(relu(norm(conv3x3(x)))))

where the shortcut is x itself, or norm(conv1x1(x)) where channels or stride change. `norm=group` puts group norm in
place of batch norm, with as many parameters and no buffers.

Paper: He, Zhang, Ren, Sun, "Deep residual learning for image recognition" (2016); Wu, He, "Group normalization" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from tutti.models.base import Model, Norm, ResidualBlock, convolution

_WIDTHS = (64, 128, 256, 512)


@dataclass
class ResNet18(Model):
    """Many layers with a norm each: many small tensors beside a few large ones."""

    norm: Norm = "batch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3:
            raise self.refusal(shape, "CxHxW, such as 3x32x32")
        layers: list[nn.Module] = [convolution(shape[0], _WIDTHS[0], 3, self.norm), nn.ReLU()]
        channels = _WIDTHS[0]
        for width in _WIDTHS:
            layers.append(self._block(channels, width, stride=1 if width == channels else 2))
            layers.append(self._block(width, width, stride=1))
            channels = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def _block(self, channels: int, width: int, stride: int) -> nn.Module:
        """The basic block: two 3x3 convolutions and a shortcut around them."""
        first = convolution(channels, width, 3, self.norm, stride)
        residual = nn.Sequential(first, nn.ReLU(), convolution(width, width, 3, self.norm))
        return ResidualBlock(residual, channels, width, self.norm, stride)
