"""Small random changes of training images, each decided by numbers from 0 to 1 that somebody else has drawn.

All samples of a batch at once, on any device and in any floating type.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def crop(inputs: Tensor, chances: Tensor, padding: int = 4, fill: float = 0.0) -> Tensor:
    """Every image moved by up to `padding` pixels down or up and right or left; what is moved in has the value `fill`.

    The first column of `chances` decides the rows, the second the columns; all offsets are equally likely.
    """
    samples, _, height, width = inputs.shape
    padded = functional.pad(inputs, (padding,) * 4, value=fill)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # sample, channel, offset, offset, row, column
    offsets = (chances[:, :2] * (2 * padding + 1)).long().clamp_(max=2 * padding)
    return windows[torch.arange(samples, device=inputs.device), :, offsets[:, 0], offsets[:, 1]]


def flip(inputs: Tensor, chances: Tensor) -> Tensor:
    """Every second image, by its chance, with left and right exchanged."""
    chosen = chances < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), inputs.flip(3), inputs)
