"""One worker on the whole batch: ordinary training, the reference for everything else.

    x <- x - lr * g    or whatever the optimizer makes of g
    rounds 0, bytes 0

Nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Lane
from tutti.replica import Replica


@dataclass
class Single(Algorithm):
    buffers: ClassVar[Literal["broadcast", "average", "local"]] = "local"
    one_worker: ClassVar[bool] = True

    def setup(self, replica: Replica, lane: Lane) -> None:
        pass
