"""Every worker averages with its neighbours, and with nobody else.

    x_i <- sum_j W_ij x_j     j over i and those that send to it; W by `rule`, see graph.py
    rounds 1, bytes deg * S: to every neighbour at once

Workers do not end with the same buffer, but nearer to each other: after one round at most 1 - gap of their distance is
left (`tutti topology ring --workers 8`), and the mean of all is kept. On a topology of several parts each carries its
own piece of the buffer. The number of samples behind a contribution does not count.

A lost message's weight goes to the worker's own buffer: x_i stays an average, but the mean of all is no longer kept.

Paper: Lian et al., "Can decentralized algorithms outperform centralized algorithms? A case study for decentralized
parallel stochastic gradient descent" (2017); Xiao, Boyd, "Fast linear iterations for distributed averaging" (2004), for
the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tutti.comm.base import Message
from tutti.exchanges.base import Exchange
from tutti.graph import Matrix, Rule, make_mixing
from tutti.spec import part
from tutti.topologies.base import Topology, receives


class Meeting(NamedTuple):
    """What one step does with one piece of the buffer."""

    piece: Tensor
    sends: list[Message]
    senders: list[int]
    landings: Tensor  # a row for each of them
    weights: list[float]  # likewise

    def recvs(self) -> list[Message]:
        return list(zip(self.senders, self.landings, strict=True))

    def mix(self, arrived: list[bool]) -> None:
        weights = [weight for weight, here in zip(self.weights, arrived, strict=True) if here]
        rows = self.landings if all(arrived) else self.landings[torch.tensor(arrived)]
        own = 1 - sum(weights)
        torch.addmv(self.piece, rows.t(), self.piece.new_tensor(weights), beta=own, out=self.piece)  # in one pass


@dataclass
class Gossip(Exchange):
    topology: Topology = part(Topology, "ring")
    rule: Rule = "metropolis"
    _matrices: tuple[int, list[Matrix]] = field(init=False, repr=False, compare=False)  # of this step, for every part
    _landings: dict[int, Tensor] = field(init=False, repr=False, compare=False)  # by part; enough rows for any step

    exact: ClassVar[bool] = False
    tolerates_loss: ClassVar[bool] = True

    def check(self, workers: int) -> None:
        super().check(workers)
        self._find_matrices(workers, step=0)

    def prepare(self) -> None:
        self._matrices, self._landings = (0, self._find_matrices(self.comm.size, step=0)), {}

    def mixing(self, workers: int, step: int = 0) -> Matrix | None:
        return self._find_matrices(workers, step)[0] if self.topology.parts == 1 else None

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        self.start(buffer, step, samples)()

    def start(self, buffer: Tensor, step: int, samples: float) -> Callable[[], None]:
        if self.topology.changing and step != self._matrices[0]:
            self._matrices = step, self._find_matrices(self.comm.size, step)
        pieces = buffer[: self.layout.numel].tensor_split(self.topology.parts)
        meetings = [self._meet(at, piece, step) for at, piece in enumerate(pieces)]
        sends = [message for meeting in meetings for message in meeting.sends]
        recvs = [message for meeting in meetings for message in meeting.recvs()]
        exchanged = self.comm.start_exchange(sends, recvs, self.tag)

        def complete() -> None:
            arrived = exchanged()
            for meeting in meetings:
                count = len(meeting.senders)
                meeting.mix(arrived[:count])
                arrived = arrived[count:]

        return complete

    def _meet(self, at: int, piece: Tensor, step: int) -> Meeting:
        rank, size = self.comm.rank, self.comm.size
        senders = receives(self.topology, rank, size, step, at)
        row = self._matrices[1][at][rank]
        return Meeting(
            piece,
            [(peer, piece) for peer in self.topology.peers(rank, size, step, at)],
            senders,
            self._find_room(at, piece, len(senders)),
            [float(row[peer]) for peer in senders],
        )

    def _find_room(self, at: int, piece: Tensor, rows: int) -> Tensor:
        if at not in self._landings or len(self._landings[at]) < rows:
            self._landings[at] = piece.new_empty(rows, piece.numel())
        return self._landings[at][:rows]

    def _find_matrices(self, workers: int, step: int) -> list[Matrix]:
        return [make_mixing(self.topology, workers, step, at, self.rule) for at in range(self.topology.parts)]
