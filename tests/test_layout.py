"""Layouts: which tensor lies where in a flat buffer, and in which memory format."""

from __future__ import annotations

import pytest
import torch

from tutti.layout import Layout


def shapes() -> dict[str, torch.Tensor]:
    image = torch.randn(4, 3, 5, 2)
    return {
        "vector": torch.randn(7),
        "matrix": torch.randn(3, 4),
        "scalar": torch.tensor(2.0),
        "one": torch.randn(1, 1, 1),
        "empty": torch.randn(0, 3),
        "empty, the other way": torch.randn(3, 0),
        "channels last": image.contiguous(memory_format=torch.channels_last),
        "channels last, one channel": torch.randn(4, 1, 5, 2).contiguous(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 4).t(),
        "permuted": image.permute(2, 0, 3, 1),
    }


def gapped() -> dict[str, torch.Tensor]:
    return {
        "every other": torch.randn(10)[::2],
        "a column": torch.randn(3, 4)[:, 1:3],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "windows": torch.randn(6).unfold(0, 3, 1),
    }


@pytest.mark.parametrize("name", shapes())
def test_a_view_keeps_shape_and_memory_format(name: str) -> None:
    tensor = shapes()[name]
    layout = Layout.of([("before", torch.zeros(5)), (name, tensor), ("behind", torch.zeros(3))])
    buffer = torch.zeros(layout.total)
    view = layout.slices[1].view(buffer)
    assert view.shape == tensor.shape
    if tensor.numel():
        assert view.stride() == tensor.stride()
    view.copy_(tensor)
    assert torch.equal(view, tensor)
    begin = layout.slices[1].offset
    buffer[begin : begin + tensor.numel()] = 0
    assert not buffer.any(), "nothing else was written"


@pytest.mark.parametrize("name", shapes())
def test_a_view_shares_memory_with_the_buffer(name: str) -> None:
    tensor = shapes()[name]
    layout = Layout.of([(name, tensor)])
    buffer = torch.zeros(layout.total)
    view = layout.slices[0].view(buffer)
    buffer[: layout.numel] = 1
    assert torch.equal(view, torch.ones(tensor.shape))
    view.zero_()
    assert not buffer.any()
    assert view.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", gapped())
def test_memory_with_gaps_or_overlaps_becomes_contiguous(name: str) -> None:
    tensor = gapped()[name]
    layout = Layout.of([(name, tensor)])
    assert layout.numel == tensor.numel()
    view = layout.slices[0].view(torch.zeros(layout.total))
    assert view.is_contiguous()
    view.copy_(tensor)
    assert torch.equal(view, tensor)


def test_a_buffer_that_begins_inside_another() -> None:
    tensor = torch.arange(6.0).view(2, 3).t()
    layout = Layout.of([("a", torch.zeros(2)), ("b", tensor)])
    whole = torch.zeros(4 + layout.total)
    layout.slices[1].view(whole[4:]).copy_(tensor)
    begin = 4 + layout.slices[1].offset
    assert torch.equal(whole[begin : begin + 6], torch.arange(6.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_slices_lie_aligned_side_by_side_and_the_spare_elements_behind_them(dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in shapes().items()}
    layout = Layout.of(list(tensors.items()))
    end = 0
    for piece, (name, tensor) in zip(layout.slices, tensors.items(), strict=True):
        assert (piece.name, piece.numel) == (name, tensor.numel())
        assert piece.offset * dtype.itemsize % 64 == 0
        assert 0 <= (piece.offset - end) * dtype.itemsize < 64
        end = piece.offset + piece.numel
    assert layout.numel == end
    assert layout.total == end + len(tensors) + 1
    assert (layout.dtype, layout.device) == (dtype, torch.device("cpu"))


def test_writing_every_view_fills_the_body_and_nothing_behind_it() -> None:
    layout = Layout.of(list(shapes().items()))
    buffer = torch.zeros(layout.total)
    for piece in layout.slices:
        piece.view(buffer).fill_(1)
    assert buffer[: layout.numel].sum() == sum(tensor.numel() for tensor in shapes().values())
    assert not buffer[layout.numel :].any()
