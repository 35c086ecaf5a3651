"""Images are moved and mirrored as their chances say, each by its own, against the plain loop over samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tutti.data.augment import crop, flip

JUST_BELOW_ONE = 1 - 2.0**-24  # the largest chance there is in 32 bits


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(7, 3, 8, 6, generator=torch.Generator().manual_seed(0))


def draw(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def crop_one_by_one(inputs: Tensor, chances: Tensor, padding: int, fill: float) -> Tensor:
    height, width = inputs.shape[2:]
    padded = functional.pad(inputs, (padding,) * 4, value=fill)
    cropped = []
    for image, (down, right) in zip(padded, chances.tolist(), strict=True):
        row, column = int(down * (2 * padding + 1)), int(right * (2 * padding + 1))
        cropped.append(image[:, row : row + height, column : column + width])
    return torch.stack(cropped)


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("fill", [0.0, -0.5])
def test_crop_is_that_of_every_image_alone(inputs: Tensor, padding: int, fill: float) -> None:
    chances = draw(7, 2)
    assert torch.equal(crop(inputs, chances, padding, fill), crop_one_by_one(inputs, chances, padding, fill))


def test_crop_reaches_every_offset_alike() -> None:
    """Nine chances in the middles of nine equal stretches are the nine offsets of four pixels."""
    column = torch.zeros(9, 1, 1, 9)
    column[..., 4] = 1
    chances = torch.stack([torch.full((9,), 0.5), (torch.arange(9) + 0.5) / 9], dim=1)
    assert crop(column, chances).argmax(dim=3).flatten().tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_ends_of_the_range_and_every_type(inputs: Tensor, dtype: torch.dtype) -> None:
    typed = inputs.to(dtype)
    lowest, highest = torch.zeros(7, 2), torch.full((7, 2), JUST_BELOW_ONE)
    assert torch.equal(crop(typed, lowest)[..., 4:, 4:], typed[..., :-4, :-4])
    assert torch.equal(crop(typed, highest)[..., :-4, :-4], typed[..., 4:, 4:])
    assert torch.equal(crop(typed, highest.to(torch.bfloat16)), crop(typed, highest))  # there they are rounded to 1
    assert crop(typed, lowest).dtype == flip(typed, lowest[:, 0]).dtype == dtype


def test_flip_mirrors_those_below_a_half(inputs: Tensor) -> None:
    chances = torch.tensor([0.0, 0.49, 0.5, JUST_BELOW_ONE, 0.2, 0.7, 0.5])
    flipped = flip(inputs, chances)
    for image, before, chance in zip(flipped, inputs, chances, strict=True):
        assert torch.equal(image, before.flip(2) if chance < 0.5 else before)


def test_an_empty_batch(inputs: Tensor) -> None:
    assert crop(inputs[:0], draw(0, 2)).shape == (0, 3, 8, 6)
    assert flip(inputs[:0], draw(0)).shape == (0, 3, 8, 6)


def test_the_inputs_stay_as_they_are(inputs: Tensor) -> None:
    before = inputs.clone()
    crop(inputs, draw(7, 2)).zero_()
    flip(inputs, draw(7)).zero_()
    assert torch.equal(inputs, before)


def test_everything_stays_on_the_device_of_the_inputs(inputs: Tensor) -> None:
    """The meta device refuses to work together with any other, as a GPU does."""
    there, chances = inputs.to("meta"), draw(7, 3).to("meta")
    changed = flip(crop(there, chances[:, :2]), chances[:, 2])
    assert changed.is_meta
    assert changed.shape == inputs.shape
