"""A wire on which nothing is sent: it counts what a worker would send and receive, and returns at once.

What a route sends depends on sizes and ranks alone, not on what it receives. So each worker can rehearse it by itself,
one after another, with tensors that have no memory (device "meta").
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import Comm, Lost, Message, Pending


class Rehearsal(Comm):
    """One worker's end; see the module."""

    wire = "rehearsal"
    watchable = False

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.clock, self.timeout = rank, size, Clock(), 0.0
        self.sent = self.received = 0  # bytes

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        self.sent += tensor.nbytes
        return _Done(tensor)

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        self.received += tensor.nbytes
        return _Done(tensor)

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        self.sent += sum(tensor.nbytes for _, tensor in sends)
        self.received += sum(tensor.nbytes for _, tensor in recvs)

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        self.received += tensor.nbytes
        return sources[0]

    def fork(self, name: str) -> Comm:
        return self

    def close(self) -> None:
        pass


class _Done(Pending):
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        return self._tensor
