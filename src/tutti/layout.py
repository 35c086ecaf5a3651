"""What a flat buffer holds: which tensor lies where, and the spare elements behind them.

    | the slices (numel elements, gaps included) | one flag per slice (how many workers used it) | the weight |

Every slice begins at a multiple of 64 bytes, as kernels that load whole vectors expect; the gaps are zero. Spare
elements travel with the bucket, so that unused parameters and unequal shares cost no message of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ALIGNMENT = 64  # bytes


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
        """Elements up to the end of the last slice."""
        last = self.slices[-1]
        return last.offset + last.numel

    @property
    def total(self) -> int:
        """Elements of the whole buffer, spare ones included."""
        return self.numel + len(self.slices) + 1

    @classmethod
    def of(cls, named: list[tuple[str, torch.Tensor]]) -> Layout:
        """The layout of these tensors one behind another."""
        step = max(1, _ALIGNMENT // named[0][1].element_size())
        slices, offset = [], 0
        for name, tensor in named:
            stride = tensor.stride() if _dense(tensor) else tensor.contiguous().stride()
            slices.append(Slice(name, tuple(tensor.shape), tuple(stride), offset, tensor.numel()))
            offset = -(-(offset + tensor.numel()) // step) * step
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
