"""A grid whose rows and columns are closed to circles: each worker talks to those above, below, left and right.

    peers(r, c) = (r-1, c), (r+1, c) (mod rows), (r, c-1), (r, c+1) (mod columns),    worker = r * columns + c

Without `rows` the grid is as nearly square as the number of workers allows. A prime number allows one row only, and a
torus of one row is a ring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tutti.errors import UserError
from tutti.spec import Count
from tutti.topologies.base import Topology


@dataclass
class Torus(Topology):
    rows: Count | None = None

    def check(self, workers: int) -> None:
        if self.rows is not None and workers > 1 and workers % self.rows:
            possible = ", ".join(str(rows) for rows in range(1, workers + 1) if workers % rows == 0)
            raise UserError(f"{workers} workers do not fill {self.rows} rows of '{self}'; rows may be {possible}")

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        rows, columns = self.shape(size)
        row, column = divmod(rank, columns)
        vertical = {(row + move) % rows * columns + column for move in (-1, 1)}
        horizontal = {row * columns + (column + move) % columns for move in (-1, 1)}
        return sorted((vertical | horizontal) - {rank})

    def shape(self, size: int) -> tuple[int, int]:
        """Rows and columns."""
        if self.rows is not None and size > 1:
            return self.rows, size // self.rows
        rows = next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)
        return rows, size // rows
