"""ResNet-50 for small images.

As resnet-18 here, the variant usual on CIFAR-10: a 3x3 stem of stride one without max-pool and global average pooling,
so any image size works. Four stages of 3, 4, 6 and 3 bottleneck blocks of width w = 64, 128, 256 and 512, each ending
with 4w channels: 23,520,842 parameters (94.1 MB) for three channels and ten classes. A block computes

    y = relu(F(x) + shortcut(x)),    F = norm(conv1x1(relu(norm(conv3x3(relu(norm(conv1x1(x))))))))

where the shortcut is x itself, or norm(conv1x1(x)) where channels or stride change. The stride is that of the 3x3
convolution, as in most reproductions (the paper strides in the first 1x1). `norm=group` puts group norm in place of
batch norm, with as many parameters and no buffers.

Paper: He, Zhang, Ren, Sun, "Deep residual learning for image recognition" (2016); Wu, He, "Group normalization" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from tutti.models.base import Model, Norm, ResidualBlock, convolution

_STEM = 64
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width of the bottleneck, blocks, stride of the first
_EXPANSION = 4


@dataclass
class ResNet50(Model):
    """Deep and narrow: twice the weights of resnet-18, in 161 tensors instead of 62."""

    norm: Norm = "batch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3:
            raise self.refusal(shape, "CxHxW, such as 3x32x32")
        layers: list[nn.Module] = [convolution(shape[0], _STEM, 3, self.norm), nn.ReLU()]
        channels = _STEM
        for width, blocks, first_stride in _STAGES:
            for stride in [first_stride] + [1] * (blocks - 1):
                layers.append(self._block(channels, width, stride))
                channels = _EXPANSION * width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def _block(self, channels: int, width: int, stride: int) -> nn.Module:
        """The bottleneck: down to its width, a 3x3 convolution there, and up again, with a shortcut around it."""
        wide = _EXPANSION * width
        residual = nn.Sequential(
            *(convolution(channels, width, 1, self.norm), nn.ReLU()),
            *(convolution(width, width, 3, self.norm, stride), nn.ReLU()),
            convolution(width, wide, 1, self.norm),
        )
        return ResidualBlock(residual, channels, wide, self.norm, stride)
