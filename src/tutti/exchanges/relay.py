"""Every worker passes on to each neighbour of a tree all that it knows from the others. After a few steps every
contribution is everywhere, exactly once, and only as old as its way is long.

    m_i->j <- x_i + sum of m_k->i over i's other neighbours k, as they came one step before
    c_i->j <- 1   + sum of c_k->i likewise                       how many contributions m_i->j is the sum of
    x_i    <- what `missing` says of x_i, the m_j->i that have come, and the sum c of their c_j->i
        counts     (x_i + sum m) / (1 + c)                       the mean of those that are there
        own        (x_i + sum m + (n - 1 - c) x_i) / n           its own in the place of those that are not
        initial    (x_i + sum m + (n - 1 - c) x_0) / n           the common beginning in their place
    rounds 1, bytes deg * (S + 4): to every neighbour at once

In the first steps contributions are missing as long as their way takes; afterwards, none, and all three are the same. A
lost message loses its count as well. With `lost=last` the message before it, and its count, stand in for it, here and
for those it is passed on to: everybody's contribution still counts once, but one step older. With `lost=nothing`, as in
the paper and the thesis, what it stood for is missing for a step; where workers differ much, such an average of a few
leads astray. Of a topology that is no tree the shortest ways from its root are taken. One of several parts (a double
binary tree) carries a piece of the buffer over each. Messages are sums of up to n models: those of half-precision
models go in single precision. The number of samples behind a contribution does not count.

All n - 1 links carry S in both directions: 2 (n - 1) S in all, as on the ring. But one worker sends deg * S: S at the
end of a chain, 2 S within it, up to 3 S in a binary tree.

The paper's text is `own`, its published code `initial`; `counts` is the variant of the thesis this product grew from.

Paper: Vogels et al., "RelaySum for decentralized deep learning on heterogeneous data" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from tutti.comm.base import Comm
from tutti.exchanges.base import Exchange
from tutti.spec import part
from tutti.topologies.base import Topology, find_parents


class Branch:
    """One tree's piece of the buffer, at one worker. A message has one element more than the piece: its count."""

    def __init__(
        self, comm: Comm, neighbours: list[int], numel: int, dtype: torch.dtype, device: torch.device, tag: str
    ) -> None:
        self.neighbours = neighbours
        shape = len(neighbours), numel + 1
        self.start = torch.zeros(numel, dtype=dtype, device=device)  # x_0; all zero until `begin`
        # What has come, and where the next comes; and what is written to the neighbours, perhaps straight into theirs,
        # in the same turns. A neighbour's message of one step is made from what it had of the step before: once it
        # has come, that may be written over.
        self.known, self.landing = (comm.zeros(math.prod(shape), dtype, device).view(shape) for _ in range(2))
        turns = [list(zip(neighbours, rows, strict=True)) for rows in (self.known, self.landing)]
        self.later, self.out = comm.drafts(turns, tag)

    def fill(self, piece: Tensor) -> None:
        """Make what goes out: to each neighbour this worker's own and all that is known from the others."""
        for place, message in enumerate(self.out):
            others = [known for other, known in enumerate(self.known) if other != place]
            body = message[:-1].copy_(piece) if not others else torch.add(piece, others[0][:-1], out=message[:-1])
            for known in others[1:]:
                body += known[:-1]
            message[-1] = 1 + sum(float(known[-1]) for known in others)

    def take(self, arrived: list[bool], lost: str) -> None:
        """What has come in is known from now on; of what has not, what was known before or nothing."""
        self.known, self.landing, self.out, self.later = self.landing, self.known, self.later, self.out
        for place, here in enumerate(arrived):
            if not here:
                self.known[place] = self.landing[place] if lost == "last" else 0

    def combine(self, piece: Tensor, size: int, missing: str) -> None:
        """In place."""
        count = 1 + round(sum(float(message[-1]) for message in self.known))
        total = piece.to(self.known.dtype)
        if missing != "counts" and count < size:
            total.add_(piece if missing == "own" else self.start, alpha=size - count)
        share = 1 / (count if missing == "counts" else size)
        shares = total.new_full((len(self.known),), share)
        piece.copy_(torch.addmv(total, self.known[:, :-1].t(), shares, beta=share, out=total))  # in one pass


@dataclass
class Relay(Exchange):
    topology: Topology = part(Topology, "chain")
    missing: Literal["counts", "own", "initial"] = "counts"
    lost: Literal["last", "nothing"] = "last"
    _branches: list[Branch] = field(init=False, repr=False, compare=False)

    exact: ClassVar[bool] = False
    tolerates_loss: ClassVar[bool] = True

    def check(self, workers: int) -> None:
        super().check(workers)
        for at in range(self.topology.parts):
            find_parents(self.topology, workers, at)

    def prepare(self) -> None:
        dtype = torch.promote_types(self.layout.dtype, torch.float32)
        pieces = torch.empty(self.layout.numel, device="meta").tensor_split(self.topology.parts)
        self._branches = [
            Branch(self.comm, self._find_neighbours(at), piece.numel(), dtype, self.layout.device, self.tag)
            for at, piece in enumerate(pieces)
        ]

    def begin(self, buffer: Tensor) -> None:
        for branch, piece in self._pieces(buffer):
            branch.start.copy_(piece)

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        self.start(buffer, step, samples)()

    def start(self, buffer: Tensor, step: int, samples: float) -> Callable[[], None]:
        branches = list(self._pieces(buffer))
        for branch, piece in branches:
            branch.fill(piece)
        exchanged = self.comm.start_exchange(
            [message for branch in self._branches for message in zip(branch.neighbours, branch.out, strict=True)],
            [message for branch in self._branches for message in zip(branch.neighbours, branch.landing, strict=True)],
            self.tag,
        )

        def complete() -> None:
            arrived = exchanged()
            for branch, piece in branches:
                count = len(branch.neighbours)
                branch.take(arrived[:count], self.lost)
                arrived = arrived[count:]
                branch.combine(piece, self.comm.size, self.missing)

        return complete

    def _pieces(self, buffer: Tensor) -> Iterator[tuple[Branch, Tensor]]:
        return zip(self._branches, buffer[: self.layout.numel].tensor_split(self.topology.parts), strict=True)

    def _find_neighbours(self, at: int) -> list[int]:
        parents, rank = find_parents(self.topology, self.comm.size, at), self.comm.rank
        above = [parents[rank]] if parents[rank] >= 0 else []
        return sorted([*above, *(worker for worker, parent in enumerate(parents) if parent == rank)])

    def state_dict(self) -> dict[str, Any]:
        return {
            "known": [branch.known.clone() for branch in self._branches],
            "start": [branch.start.clone() for branch in self._branches],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for branch, known, start in zip(self._branches, state["known"], state["start"], strict=True):
            branch.known.copy_(known)
            branch.start.copy_(start)
