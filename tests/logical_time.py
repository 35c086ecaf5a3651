"""A wire whose clock is the messages: every worker has one link that sends and receives at once, and computing is free.

A message leaves when its sender has come to it and has sent those before it, passes both links at their rate, and is
there one latency later. How the threads really took turns does not matter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from workers import on_threads

from tutti.collectives.base import Collective
from tutti.comm.base import Comm, Message, Pending


@dataclass
class Links:
    """What the workers share: the links' figures, and when the messages on their way began and ended to leave."""

    latency: float
    seconds_per_byte: float
    _leaving: dict[tuple[int, int], deque[tuple[float, float]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def post(self, sender: int, receiver: int, leaving: tuple[float, float]) -> None:
        with self._lock:
            self._leaving.setdefault((sender, receiver), deque()).append(leaving)

    def take(self, sender: int, receiver: int) -> tuple[float, float]:
        with self._lock:
            return self._leaving[sender, receiver].popleft()


class Timed(Comm):
    """One worker's end; `time` is when its last exchange was complete."""

    wire = "timed"

    def __init__(self, inner: Comm, links: Links) -> None:
        self.inner, self.links, self.rank, self.size = inner, links, inner.rank, inner.size
        self.clock, self.timeout = inner.clock, inner.timeout
        self.reset()

    def reset(self) -> None:
        self.time = self.outgoing_free = self.incoming_free = 0.0

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        for peer, tensor in sends:
            begin = max(self.time, self.outgoing_free)
            self.outgoing_free = begin + tensor.nbytes * self.links.seconds_per_byte
            self.links.post(self.rank, peer, (begin, self.outgoing_free))
        self.inner.exchange(sends, recvs, tag)
        for begin, end in sorted(self.links.take(peer, self.rank) for peer, _ in recvs):
            self.incoming_free = max(end, self.incoming_free + end - begin)
            self.time = max(self.time, self.incoming_free + self.links.latency)
        self.time = max(self.time, self.outgoing_free)

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        raise NotImplementedError

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        raise NotImplementedError

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        raise NotImplementedError

    def fork(self, name: str) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


def time_operation(
    route: Collective, operation: str, size: int, length: int, latency: float, seconds_per_byte: float
) -> float:
    """When the last of the workers is done with a buffer of so many floats, if all are ready at 0."""
    links = Links(latency, seconds_per_byte)

    def work(comm: Comm) -> float:
        timed = Timed(comm, links)
        route.prepare(timed)
        timed.reset()
        route.perform(operation, timed, torch.zeros(length), "gradients/0")
        return timed.time

    return max(on_threads(size, work))
