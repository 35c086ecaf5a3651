"""The checksum of tensors: any change of bits changes it, and equal bits give equal numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tutti.checksum import checksum, combine

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
COUNTS = (0, 1, 3, 7, 1000, 1024 * 8 + 5, 40_000)


def drawn(count: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(count, generator=torch.Generator().manual_seed(count)) * 100).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", COUNTS)
def test_a_copy_has_the_same_and_one_changed_element_another(count: int, dtype: torch.dtype) -> None:
    tensor = drawn(count, dtype)
    assert checksum(tensor.clone()) == checksum(tensor)
    for place in {0, count // 2, count - 1} if count else ():
        other = tensor.clone()
        other[place] = tensor[place] == 0
        assert checksum(other) != checksum(tensor)


def test_the_smallest_difference_counts() -> None:
    tensor = torch.ones(9000)
    other = tensor.clone()
    other[8999] = torch.nextafter(tensor[0], torch.tensor(2.0))
    assert checksum(other) != checksum(tensor)


@pytest.mark.parametrize("places", [(0, 2), (0, 2047), (10, 3000), (8195, 8198)])
def test_a_swap_counts(places: tuple[int, int]) -> None:
    tensor = torch.arange(8200.0)
    other = tensor.clone()
    other[list(places)] = tensor[list(reversed(places))]
    assert checksum(other) != checksum(tensor)


def test_nan_equals_itself() -> None:
    tensor = torch.full((9000,), torch.nan)
    assert checksum(tensor) == checksum(tensor.clone())
    assert checksum(tensor) != checksum(torch.zeros(9000))


def test_memory_format_and_alignment_do_not_count() -> None:
    tensor = torch.randn(4, 3, 5, 5)
    assert checksum(tensor.to(memory_format=torch.channels_last)) == checksum(tensor)
    flat = torch.randn(100)
    assert checksum(flat[1:]) == checksum(flat[1:].clone())
    assert checksum(torch.tensor(1.0)) == checksum(torch.tensor([1.0]))


def test_order_counts_when_they_are_combined() -> None:
    one, other = checksum(torch.ones(3)), checksum(torch.zeros(3))
    assert combine([one, other]) != combine([other, one])
    assert -(2**63) <= combine([one, other]) < 2**63
    assert combine([]) == combine([])
