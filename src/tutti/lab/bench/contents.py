"""What the workers' buffers hold before an operation and must hold behind it: whole numbers, so that sums are exact.

Every worker's numbers are different ones. They repeat after a prime number of elements, so that a piece that landed in
another one's place is found. The numbers are so small that the sum over all workers is exact in every dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import torch
from torch import Tensor

from tutti.collectives.base import pieces

_PERIOD = 9973
_EXACT = {torch.float16: 2**11, torch.bfloat16: 2**8}  # up to here all whole numbers can be written
_LARGEST = 15


class Contents:
    """The numbers of all workers for a buffer of so many elements."""

    def __init__(self, count: int, dtype: torch.dtype, workers: int) -> None:
        self.count, self.workers = count, workers
        largest = max(1, min(_LARGEST, _EXACT.get(dtype, 2**24) // workers))
        index = torch.arange(_PERIOD)
        tables = [(index * index // 7 + (3 * index + 1) * (worker + 1)) % (largest + 1) for worker in range(workers)]
        self._tables = [table.to(dtype) for table in tables]
        self._sum = torch.stack(tables).sum(0).to(dtype)
        ends = list(accumulate(piece.numel() for piece in pieces(torch.empty(count, dtype=torch.bool), workers)))
        self._bounds = list(zip([0, *ends[:-1]], ends, strict=True))

    def of(self, worker: int) -> Tensor:
        """A worker's buffer before the operation."""
        return _tile(self._tables[worker], 0, self.count)

    def is_right(self, operation: str, worker: int, buffer: Tensor) -> bool:
        """Whether a worker's buffer is what it must be behind the operation, wherever that promises anything."""
        return all(torch.equal(buffer[begin:end], wanted) for begin, end, wanted in self._wanted(operation, worker))

    def _wanted(self, operation: str, worker: int) -> Iterator[tuple[int, int, Tensor]]:
        """(from, to, what must stand there); worker 0 is the root."""
        mine, root = self._bounds[worker], worker == 0
        if operation == "all-reduce" or (operation == "reduce" and root):
            yield 0, self.count, _tile(self._sum, 0, self.count)
        elif operation == "broadcast":
            yield 0, self.count, self.of(0)
        elif operation == "reduce-scatter":
            yield *mine, _tile(self._sum, *mine)
        elif operation == "scatter":
            yield *mine, _tile(self._tables[0], *mine)
        elif operation == "all-gather" or (operation == "gather" and root):
            for table, place in zip(self._tables, self._bounds, strict=True):
                yield *place, _tile(table, *place)
        elif operation == "all-to-all":
            for table, place in zip(self._tables, self._bounds, strict=True):
                yield *place, _tile(table, *mine)


def _tile(table: Tensor, begin: int, end: int) -> Tensor:
    """The elements from `begin` to `end` of the table repeated for ever."""
    turned = table.roll(-(begin % _PERIOD))
    return turned.repeat((end - begin + _PERIOD - 1) // _PERIOD)[: end - begin]
