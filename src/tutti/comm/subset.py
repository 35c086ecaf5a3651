"""Some of a wire's workers as a wire of their own, numbered from 0: their messages pass over the one beneath."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tutti.comm.base import Comm, Message, Pending, Step


class Subset(Comm):
    """One worker's end; `ranks` are the workers beneath, in the order of their new numbers.

    It has no operations of a backend: its own go from worker to worker. Closing it leaves the wire beneath open.
    """

    def __init__(self, inner: Comm, ranks: Sequence[int]) -> None:
        self._inner, self._ranks = inner, tuple(ranks)
        self.rank, self.size = self._ranks.index(inner.rank), len(self._ranks)
        self.wire, self.clock, self.timeout, self.interface = inner.wire, inner.clock, inner.timeout, inner.interface

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        return self._inner.send(self._ranks[peer], tensor, tag)

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        return self._inner.recv(self._ranks[peer], tensor, tag)

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        self._inner.exchange(self._beneath(sends), self._beneath(recvs), tag)

    def start_exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        return self._inner.start_exchange(self._beneath(sends), self._beneath(recvs), tag)

    def accumulate(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        self._inner.accumulate(self._beneath(sends), self._beneath(recvs), tag)

    def stream(self, steps: Sequence[Step], lag: int, tag: str) -> None:
        def beneath(message: Message | None) -> Message | None:
            return message and (self._ranks[message[0]], message[1])

        self._inner.stream([step._replace(out=beneath(step.out), into=beneath(step.into)) for step in steps], lag, tag)

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        return self._ranks.index(self._inner.recv_any([self._ranks[peer] for peer in sources], tensor, tag))

    def fork(self, name: str) -> Subset:
        """The same workers over a fork of the wire beneath, so its other workers must call this too."""
        return Subset(self._inner.fork(name), self._ranks)

    def interrupt(self, error: BaseException) -> None:
        """The whole wire beneath."""
        self._inner.interrupt(error)

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._inner.zeros(count, dtype, device)

    def drafts(self, turns: Sequence[Sequence[Message]], tag: str) -> list[list[Tensor]]:
        return self._inner.drafts([self._beneath(landings) for landings in turns], tag)

    def note(self, tag: str, nbytes: float) -> None:
        self._inner.note(tag, nbytes)

    def close(self) -> None:
        pass

    def _beneath(self, messages: Sequence[Message]) -> list[Message]:
        return [(self._ranks[peer], tensor) for peer, tensor in messages]
