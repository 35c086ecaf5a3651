"""The contract of an exchange: how the workers come to agree on one buffer.

`setup` returns a copy bound to one comm and one layout (one per bucket); `agree` blocks and works in place. It runs on
the lane while backward goes on, or on the main thread after it. `start` is the same in two parts, so that the messages
of one bucket are under way while another is completed.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

from torch import Tensor

from tutti.comm.base import Comm
from tutti.graph import Matrix
from tutti.layout import Layout
from tutti.spec import Member


@dataclass
class Exchange(Member):
    axis: ClassVar[str] = "exchanges"
    noun: ClassVar[str] = "exchange"
    exact: ClassVar[bool] = True  # all workers end with the same buffer
    tolerates_loss: ClassVar[bool] = False  # goes on without a message that is lost; see comm/lossy.py
    # set by `setup`, no part of the spec
    comm: Comm = field(init=False, repr=False, compare=False)
    layout: Layout = field(init=False, repr=False, compare=False)
    tag: str = field(init=False, repr=False, compare=False)

    def setup(self, comm: Comm, layout: Layout, tag: str) -> Self:
        """A copy bound to this comm, layout and tag; members check here that their parts go together."""
        bound = copy.copy(self)
        bound.comm, bound.layout, bound.tag = comm, layout, tag
        bound.check(comm.size)
        bound.prepare()
        return bound

    def prepare(self) -> None:
        """Check the parts and make the state; `comm`, `layout` and `tag` are there."""

    def scale(self, samples: float) -> float:
        """What a contribution must be multiplied by before `agree`; whoever fills the buffer does it on the way."""
        return 1.0

    @abstractmethod
    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        """Turn this worker's scaled buffer (see `layout`) into what all agree on; `samples` is what it stands for."""

    def start(self, buffer: Tensor, step: int, samples: float) -> Callable[[], None]:
        """`agree` in two parts: the function returned completes it, and the buffer is not to be touched meanwhile.
        Those whose messages do not wait for others send them in the first part."""
        return partial(self.agree, buffer, step, samples)

    def begin(self, buffer: Tensor) -> None:
        """What all workers have in common before the first `agree`; those that need it keep a copy."""

    def mixing(self, workers: int, step: int = 0) -> Matrix | None:
        """The matrix W of x_i <- sum_j W_ij x_j, where one step is that and nothing else."""
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state, f"'{self.name}' has no state"
