"""What a flat buffer holds: which tensor lies where, and the spare elements behind them.

    | elements of all slices (numel) | one flag per slice (how many workers used it) | the weight |

Spare elements travel with the bucket, so that unused parameters and unequal shares cost no message of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Slice:
    """One tensor in the buffer; `stride` keeps its memory format."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    numel: int

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer[self.offset : self.offset + self.numel].as_strided(
            self.shape, self.stride, buffer.storage_offset() + self.offset
        )


@dataclass(frozen=True)
class Layout:
    """A buffer of one dtype on one device, never across parameter groups."""

    dtype: torch.dtype
    device: torch.device
    slices: tuple[Slice, ...]

    @property
    def numel(self) -> int:
        return sum(s.numel for s in self.slices)

    @property
    def total(self) -> int:
        """Elements of the whole buffer, spare ones included."""
        return self.numel + len(self.slices) + 1

    @classmethod
    def of(cls, named: list[tuple[str, torch.Tensor]]) -> Layout:
        """The layout of these tensors one behind another."""
        slices, offset = [], 0
        for name, tensor in named:
            stride = tensor.stride() if _dense(tensor) else tensor.contiguous().stride()
            slices.append(Slice(name, tuple(tensor.shape), tuple(stride), offset, tensor.numel()))
            offset += tensor.numel()
        first = named[0][1]
        return cls(first.dtype, first.device, tuple(slices))


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's own strides fill its memory without gaps (in whatever order of dimensions)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
