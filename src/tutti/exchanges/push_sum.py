"""Every worker gives equal shares of what it has to those it sends to, and keeps one: for links that go one way.

    x_i <- x_i + (y_i - z_i)          what the buffer y_i has moved by since it was left as z_i
    x_i <- sum_j P_ij x_j             P_ij = 1 / (1 + how many j sends to), for j itself as well
    w_i <- sum_j P_ij w_j             from 1 at the start
    z_i <- x_i / w_i                  what the buffer becomes
    rounds 1, bytes deg * (S + 4): to every receiver at once

What all have together is kept, but not every worker gets as much as it gives away where links go one way: w counts how
much of the whole is in x, and x / w is right again. Where everybody gives and gets alike, w stays 1. A lost message
would take its share out of the world for good, so this exchange has it sent again. The number of samples behind a
contribution does not count.

Paper: Assran, Loizou, Ballas, Rabbat, "Stochastic gradient push for distributed deep learning" (2019); Kempe, Dobra,
Gehrke, "Gossip-based computation of aggregate information" (2003).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tutti.exchanges.base import Exchange
from tutti.spec import part
from tutti.topologies.base import Topology, receives


@dataclass
class PushSum(Exchange):
    topology: Topology = part(Topology, "one-peer-exponential")
    _held: list[Tensor] = field(init=False, repr=False, compare=False)  # for every part x, and w behind it
    _begun: bool = field(init=False, repr=False, compare=False)

    exact: ClassVar[bool] = False

    def prepare(self) -> None:
        dtype = torch.promote_types(self.layout.dtype, torch.float32)  # shares of w become small
        pieces = torch.empty(self.layout.numel, device="meta").tensor_split(self.topology.parts)
        self._held = [torch.ones(piece.numel() + 1, dtype=dtype, device=self.layout.device) for piece in pieces]
        self._begun = False

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        pieces = buffer[: self.layout.numel].tensor_split(self.topology.parts)
        for held, piece in zip(self._held, pieces, strict=True):
            if self._begun:
                held[:-1] += piece - held[:-1] / held[-1]
            else:
                held[:-1] = piece
        self._begun = True
        self._share(step)
        for held, piece in zip(self._held, pieces, strict=True):
            piece.copy_(held[:-1] / held[-1])

    def _share(self, step: int) -> None:
        rank, size, sends, recvs = self.comm.rank, self.comm.size, [], []
        for at, held in enumerate(self._held):
            peers = self.topology.peers(rank, size, step, at)
            held /= 1 + len(peers)
            share = held.clone()  # what comes in is added while this goes out
            sends += [(peer, share) for peer in peers]
            recvs += [(peer, held) for peer in receives(self.topology, rank, size, step, at)]
        self.comm.accumulate(sends, recvs, self.tag)

    def state_dict(self) -> dict[str, Any]:
        return {"held": [held.clone() for held in self._held], "begun": self._begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begun = state["begun"]
        for held, saved in zip(self._held, state["held"], strict=True):
            held.copy_(saved)
