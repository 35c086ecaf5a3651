"""A comm that counts what passes: bytes, messages and seconds, by kind of traffic and by peer.

Point-to-point traffic is counted as it is sent (payload, without frame headers). A backend's own operations do not pass
our wire; their bytes come from the formula of the usual algorithm, and the meter says so (`source`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress

import torch
import torch.distributed as dist
from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import Comm, Lost, Message, Pending, Step


@dataclass
class Tally:
    """What one worker sent to and received from one peer, of one kind."""

    sent: float = 0.0
    received: float = 0.0
    messages: int = 0
    seconds: float = 0.0  # in calls that this peer took part in
    lost: int = 0  # of the messages; see comm/lossy.py


@dataclass
class Meter:
    """All tallies of one worker; shared by a comm and its forks."""

    tallies: dict[tuple[str, int], Tally] = field(default_factory=dict)
    by_formula: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, tag: str, sends: Sequence[Message], recvs: Sequence[Message], seconds: float) -> None:
        kind = tag.partition("/")[0]
        with self._lock:
            for peer, tensor in sends:
                tally = self._tally(kind, peer)
                tally.sent += tensor.nbytes
                tally.messages += 1
            for peer, tensor in recvs:
                self._tally(kind, peer).received += tensor.nbytes
            for peer in {peer for peer, _ in (*sends, *recvs)}:
                self._tally(kind, peer).seconds += seconds

    def count_lost(self, tag: str, peer: int, messages: int) -> None:
        with self._lock:
            self._tally(tag.partition("/")[0], peer).lost += messages

    def count_formula(self, tag: str, nbytes: float) -> None:
        kind = tag.partition("/")[0]
        with self._lock:
            self.by_formula[kind] = self.by_formula.get(kind, 0.0) + nbytes

    def sent(self, kind: str | None = None) -> float:
        """Bytes sent so far by this worker, of one kind or of all."""
        with self._lock:
            passed = sum(t.sent for (k, _), t in self.tallies.items() if kind in (None, k))
            return passed + sum(b for k, b in self.by_formula.items() if kind in (None, k))

    def lost(self) -> int:
        """Messages that this worker has sent and that have not arrived."""
        with self._lock:
            return sum(tally.lost for tally in self.tallies.values())

    def source(self, kind: str) -> str:
        """Where the figure for this kind comes from."""
        return "formula" if kind in self.by_formula else "metered"

    def rows(self) -> list[dict[str, object]]:
        """Everything, for a record."""
        with self._lock:
            rows: list[dict[str, object]] = [
                {"kind": kind, "peer": peer, **vars(tally)} for (kind, peer), tally in sorted(self.tallies.items())
            ]
            return rows + [{"kind": kind, "formula": nbytes} for kind, nbytes in sorted(self.by_formula.items())]

    def _tally(self, kind: str, peer: int) -> Tally:
        return self.tallies.setdefault((kind, peer), Tally())


def metered(comm: Comm, meter: Meter | None = None) -> Metered:
    """Wrap a comm, unless it counts already; the operations of a backend that has its own are counted by formula."""
    if isinstance(comm, Metered) and meter is None:
        return comm
    cls = MeteredBackend if comm.wire == "torch" else Metered
    return cls(comm, meter or Meter())


class Metered(Comm):
    """Counts every message that passes."""

    def __init__(self, inner: Comm, meter: Meter) -> None:
        self.inner, self.meter = inner, meter
        self.wire, self.rank, self.size = inner.wire, inner.rank, inner.size
        self.clock, self.timeout, self.interface = inner.clock, inner.timeout, inner.interface

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        begun = self.clock.now()
        pending = self.inner.send(peer, tensor, tag)
        finish = partial(self.meter.count, tag, [(peer, tensor)], [])
        return Counted(pending, finish, self.clock, self.clock.now() - begun)

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        begun = self.clock.now()
        pending = self.inner.recv(peer, tensor, tag)
        finish = partial(self.meter.count, tag, [], [(peer, tensor)])
        return Counted(pending, finish, self.clock, self.clock.now() - begun)

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        begun = self.clock.now()
        self.inner.exchange(sends, recvs, tag)
        self.meter.count(tag, sends, recvs, self.clock.now() - begun)

    def start_exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        started = self.clock.now()
        complete = self.start_inner(sends, recvs, tag)
        seconds = self.clock.now() - started

        def count() -> list[bool]:
            begun = self.clock.now()
            arrived = complete()
            self.meter.count(tag, sends, list(compress(recvs, arrived)), seconds + self.clock.now() - begun)
            return arrived

        return count

    def start_inner(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        """What `start_exchange` counts."""
        return self.inner.start_exchange(sends, recvs, tag)

    def accumulate(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        begun = self.clock.now()
        self.inner.accumulate(sends, recvs, tag)
        self.meter.count(tag, sends, recvs, self.clock.now() - begun)

    def stream(self, steps: Sequence[Step], lag: int, tag: str) -> None:
        begun = self.clock.now()
        self.inner.stream(steps, lag, tag)
        sends, recvs = [step.out for step in steps if step.out], [step.into for step in steps if step.into]
        self.meter.count(tag, sends, recvs, self.clock.now() - begun)

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        begun = self.clock.now()
        peer = self.inner.recv_any(sources, tensor, tag)
        self.meter.count(tag, [], [(peer, tensor)], self.clock.now() - begun)
        return peer

    def fork(self, name: str) -> Metered:
        return metered(self.inner.fork(name), self.meter)

    def bell(self, answer: Callable[[], None]) -> Callable[[], None]:
        return self.inner.bell(answer)

    def interrupt(self, error: BaseException) -> None:
        self.inner.interrupt(error)

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.inner.zeros(count, dtype, device)

    def drafts(self, turns: Sequence[Sequence[Message]], tag: str) -> list[list[Tensor]]:
        return self.inner.drafts(turns, tag)

    @property
    def native(self) -> Comm:
        return self if self.inner.native is self.inner else metered(self.inner.native, self.meter)

    @property
    def group(self) -> dist.ProcessGroup | None:
        return self.inner.group

    def note(self, tag: str, nbytes: float) -> None:
        self.meter.count_formula(tag, nbytes)

    def close(self) -> None:
        self.inner.close()


class Counted(Pending):
    """Counts when it is complete, with the seconds in calls; what was lost does not count."""

    def __init__(self, pending: Pending, finish: Callable[[float], None], clock: Clock, seconds: float = 0.0) -> None:
        self._pending, self._finish, self._clock, self._seconds = pending, finish, clock, seconds
        self._finished = False

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        begun = self._clock.now()
        result = self._pending.wait(deadline)
        self._seconds += self._clock.now() - begun
        if not self._finished and not isinstance(result, Lost):
            self._finished = True
            self._finish(self._seconds)
        return result


class MeteredBackend(Metered):
    """Counts a backend's own operations by the formula of the algorithm that backends use for them."""

    def barrier(self, tag: str = "control/barrier") -> None:
        self.inner.barrier(tag)

    def broadcast(self, tensor: Tensor, root: int = 0, tag: str = "control/broadcast") -> None:
        self.inner.broadcast(tensor, root, tag)
        self.note(tag, (self.size - 1) * tensor.nbytes if self.rank == root else 0)

    def gather(self, tensor: Tensor, out: Tensor | None, root: int = 0, tag: str = "control/gather") -> None:
        self.inner.gather(tensor, out, root, tag)
        self.note(tag, 0 if self.rank == root else tensor.nbytes)

    def all_gather(self, tensor: Tensor, out: Tensor, tag: str = "control/all-gather") -> None:
        self.inner.all_gather(tensor, out, tag)
        self.note(tag, (self.size - 1) * tensor.nbytes)

    def scatter(self, tensor: Tensor, rows: Tensor | None, root: int = 0, tag: str = "control/scatter") -> None:
        self.inner.scatter(tensor, rows, root, tag)
        self.note(tag, (self.size - 1) * tensor.nbytes if self.rank == root else 0)

    def reduce(self, tensor: Tensor, root: int = 0, tag: str = "control/reduce") -> None:
        self.inner.reduce(tensor, root, tag)
        self.note(tag, 0 if self.rank == root else tensor.nbytes)

    def reduce_scatter(self, tensor: Tensor, out: Tensor, tag: str = "control/reduce-scatter") -> None:
        self.inner.reduce_scatter(tensor, out, tag)
        self.note(tag, (self.size - 1) * out.nbytes)

    def all_to_all(self, tensor: Tensor, out: Tensor, tag: str = "control/all-to-all") -> None:
        self.inner.all_to_all(tensor, out, tag)
        self.note(tag, (self.size - 1) / self.size * tensor.nbytes)

    def all_reduce(self, tensor: Tensor, tag: str = "control/all-reduce") -> None:
        self.inner.all_reduce(tensor, tag)
        self.note(tag, 2 * (self.size - 1) / self.size * tensor.nbytes)
