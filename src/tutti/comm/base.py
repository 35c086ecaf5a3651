"""What every wire can do: messages between workers, the nine operations written over them, a clock, a lane.

A `Comm` belongs to one thread at a time; `fork(name)` makes an independent one to the same peers for another thread.
Messages are matched by (peer, tag); tags are names such as "gradients/3" whose first part is the kind of traffic.
The operations below go directly from worker to worker, in one or two rounds; routes that take more rounds and fewer
connections are members of `collectives/`. A wire whose backend has operations of its own offers them as `native`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tutti.clock import SILENCE as SILENCE
from tutti.clock import Clock as Clock
from tutti.comm.forked import leave_to_parent
from tutti.errors import RunFailed

KINDS: Final = ("gradients", "weights", "buffers", "metrics", "control")
Message = tuple[int, Tensor]  # the peer, and what is sent to it or received from it


class Step(NamedTuple):
    """One exchange of a `stream`: what goes out, and where what comes in goes, or what it is added to.

    `then` is called when it and all before it are complete; it may write into what they have sent and received.
    """

    out: Message | None
    into: Message | None
    adds: bool = False
    then: Callable[[], None] | None = None


class PeerLost(RunFailed):
    """Another worker is gone or silent: a consequence of what happened there, never the first cause."""

    def __init__(self, message: str, peer: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer  # the worker that was lost; None where nobody in particular is known


class Mismatch(RunFailed):
    """Two workers do not agree on the size of a message: they do not do the same thing."""


class Lost:
    """Stands for a message that did not arrive before the deadline given to `wait`."""


LOST: Final = Lost()


class Pending(ABC):
    """Something under way. `wait` returns when it is complete; with a deadline (seconds from now) perhaps `LOST`."""

    @abstractmethod
    def wait(self, deadline: float | None = None) -> Tensor | Lost: ...

    def arrived(self) -> bool:
        """Whether it is complete now: looks without waiting. Never, where the wire cannot look."""
        return False


class Comm(ABC):
    """One worker's end of the wire."""

    wire: str
    rank: int
    size: int
    clock: Clock
    timeout: float  # seconds without a sign of life after which a peer counts as silent
    watchable: bool = True  # its waits can be interrupted and looked at, message by message (see watch.py)
    interface: str = ""  # through which this run's traffic passes and no other's; empty where there is none

    @abstractmethod
    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        """Begin to send; the tensor must stay as it is until `wait` has returned."""

    @abstractmethod
    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        """Begin to receive into the tensor."""

    @abstractmethod
    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        """Send and receive all of these at once; returns when all are complete."""

    def start_exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        """`exchange` in two parts: the function returned completes it and says which of the receives have arrived. A
        wire that loses messages sends none of these again; the tensor of one that has not arrived holds what it held
        before. Several may be under way and nothing else, if all workers start and complete them in the same order; a
        wire that can sends from here on."""

        def complete() -> list[bool]:
            self.exchange(sends, recvs, tag)
            return [True] * len(recvs)

        return complete

    def bell(self, answer: Callable[[], None]) -> Callable[[], None]:
        """What another thread may ring at any time: whoever waits in this comm then calls `answer`, which may start
        exchanges and wait for none. A wire whose waits cannot be interrupted never does. An error that `answer`
        raises interrupts the comm, as `interrupt` does."""
        return lambda: None

    def interrupt(self, error: BaseException) -> None:  # noqa: B027 (some wires cannot)
        """End what waits in this comm now, and every later call, with this error. Any thread may call it.

        The first error counts. Forks are comms of their own and go on. `close` still works. A wire whose waits belong
        to a backend (torch) raises it from the next call on; one on which nothing waits (rehearsal) ignores it.
        """

    def accumulate(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        """As `exchange`, but what comes in is added to the one-dimensional tensors, in the order given."""
        landings = [(peer, torch.empty_like(tensor)) for peer, tensor in recvs]
        self.exchange(sends, landings, tag)
        for (_, tensor), (_, landing) in zip(recvs, landings, strict=True):
            tensor.add_(landing)

    def stream(self, steps: Sequence[Step], lag: int, tag: str) -> None:
        """Many exchanges in a row. What goes out may wait for what came in `lag` steps before, and for nothing later:
        a wire that can has several under way, so that its links are never idle."""
        for step in steps:
            swap = self.accumulate if step.adds else self.exchange
            swap([step.out] if step.out else [], [step.into] if step.into else [], tag)
            if step.then is not None:
                step.then()

    @abstractmethod
    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        """Receive from whichever of the sources comes first; returns its rank."""

    @abstractmethod
    def fork(self, name: str) -> Comm:
        """An independent wire to the same peers (every worker must call this in the same order)."""

    def fork_small(self, name: str) -> Comm:
        """A fork for a few short messages: a wire that can spends no memory on it."""
        return self.fork(name)

    @abstractmethod
    def close(self) -> None:
        """Say goodbye and let go of everything; further calls do nothing."""

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what will be sent again and again: a wire may put it where its peers can see it."""
        return torch.zeros(count, dtype=dtype, device=device)

    def drafts(self, turns: Sequence[Sequence[Message]], tag: str) -> list[list[Tensor]]:
        """Memory to write in what will be sent to these peers again and again, as long as what comes from them. A turn
        says where that lands, in memory from `zeros`; several turns, to the same peers, take turns. On a wire that can
        a draft is the peer's own landing of that turn, and sending it copies nothing: so nothing may be written in it
        while the peer may still use what it held. All peers call this too, in the same order."""
        drafts = [self.zeros(tensor.numel(), tensor.dtype, tensor.device) for _, tensor in turns[0]]
        return [drafts for _ in turns]

    @property
    def native(self) -> Comm:
        """The comm whose operations are the backend's own; this one, where the backend has none."""
        return self

    @property
    def group(self) -> dist.ProcessGroup | None:
        """torch's process group beneath, where there is one."""
        return None

    def note(self, tag: str, nbytes: float) -> None:  # noqa: B027 (most comms count nothing)
        """Bytes that did not pass this comm and are known by formula only; a metered comm counts them."""

    # --- the nine operations -----------------------------------------------------------------------------------------

    def barrier(self, tag: str = "control/barrier") -> None:
        """Return when every worker has come here."""
        token = torch.zeros(1)
        self.exchange([(p, token) for p in self.others()], [(p, torch.empty(1)) for p in self.others()], tag)

    def broadcast(self, tensor: Tensor, root: int = 0, tag: str = "control/broadcast") -> None:
        """The root's tensor, everywhere."""
        if self.rank == root:
            self.exchange([(p, tensor) for p in self.others()], [], tag)
        else:
            self.exchange([], [(root, tensor)], tag)

    def gather(self, tensor: Tensor, out: Tensor | None, root: int = 0, tag: str = "control/gather") -> None:
        """Row i of the root's `out` becomes worker i's tensor."""
        if self.rank != root:
            self.exchange([(root, tensor)], [], tag)
            return
        assert out is not None, "the root gathers into a tensor of one row per worker"
        out[root].copy_(tensor)
        self.exchange([], [(p, out[p]) for p in self.others()], tag)

    def all_gather(self, tensor: Tensor, out: Tensor, tag: str = "control/all-gather") -> None:
        """Row i of everybody's `out` becomes worker i's tensor."""
        out[self.rank].copy_(tensor)
        self.exchange([(p, tensor) for p in self.others()], [(p, out[p]) for p in self.others()], tag)

    def scatter(self, tensor: Tensor, rows: Tensor | None, root: int = 0, tag: str = "control/scatter") -> None:
        """Worker i's tensor becomes row i of the root's rows."""
        if self.rank != root:
            self.exchange([], [(root, tensor)], tag)
            return
        assert rows is not None, "the root scatters a tensor of one row per worker"
        tensor.copy_(rows[root])
        self.exchange([(p, rows[p]) for p in self.others()], [], tag)

    def reduce(self, tensor: Tensor, root: int = 0, tag: str = "control/reduce") -> None:
        """The root's tensor becomes the sum of all."""
        rows = tensor.new_empty((self.size, *tensor.shape)) if self.rank == root else None
        self.gather(tensor, rows, root, tag)
        if rows is not None:
            torch.sum(rows, 0, out=tensor)

    def reduce_scatter(self, tensor: Tensor, out: Tensor, tag: str = "control/reduce-scatter") -> None:
        """Worker i's `out` becomes the sum over all workers of row i of their tensors."""
        rows = torch.empty_like(tensor)
        self.all_to_all(tensor, rows, tag)
        torch.sum(rows, 0, out=out)

    def all_to_all(self, tensor: Tensor, out: Tensor, tag: str = "control/all-to-all") -> None:
        """Row j of worker i's tensor becomes row i of worker j's `out`."""
        out[self.rank].copy_(tensor[self.rank])
        self.exchange([(p, tensor[p]) for p in self.others()], [(p, out[p]) for p in self.others()], tag)

    def all_reduce(self, tensor: Tensor, tag: str = "control/all-reduce") -> None:
        """Everybody's tensor becomes the sum of all: each worker adds up one piece, then all pieces go to all."""
        flat = tensor.view(-1)
        pieces = flat.tensor_split(self.size)
        mine = pieces[self.rank]
        rows = mine.new_empty((self.size, mine.numel()))
        rows[self.rank].copy_(mine)
        self.exchange([(p, pieces[p]) for p in self.others()], [(p, rows[p]) for p in self.others()], tag)
        torch.sum(rows, 0, out=mine)
        self.exchange([(p, mine) for p in self.others()], [(p, pieces[p]) for p in self.others()], tag)

    # --- conveniences over them --------------------------------------------------------------------------------------

    def others(self) -> list[int]:
        """Every other worker, starting behind this one so that not all begin with worker 0."""
        return [(self.rank + k) % self.size for k in range(1, self.size)]

    def gather_bytes(self, data: bytes, tag: str = "control/gather-bytes") -> list[bytes]:
        """Everybody's bytes at every worker, whatever their lengths."""
        lengths = torch.zeros(self.size, 1, dtype=torch.int64)
        self.all_gather(torch.tensor([len(data)]), lengths, tag)
        padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
        padded[: len(data)] = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)]
        rows = padded.new_empty((self.size, padded.numel()))
        self.all_gather(padded, rows, tag)
        return [row[: int(length)].numpy().tobytes() for row, length in zip(rows, lengths, strict=True)]


class Lane:
    """A worker's communication thread: functions run on it one after another, in the order they were submitted.

    Of those in two parts the first part of one also runs while the second part of another waits: the wire has something
    to do while one is completed, also on a link whose share of it has come.

    On CUDA it has a stream of its own that waits for what was submitted and is waited for by whoever waits.
    """

    def __init__(self, comm: Comm, device: torch.device) -> None:
        self.comm = comm
        self.busy: list[tuple[float, float]] = []  # when it began and ended each function, since the last `take_busy`
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._jobs: deque[_Job] = deque()
        self._begun: deque[_Job] = deque()  # and not complete
        self._wake = threading.Condition()
        self._closed = False
        self._ring = comm.bell(self._begin_all)
        self._abandoned: BaseException | None = None
        leave_to_parent(self)
        self._thread = threading.Thread(target=self._work, name=f"tutti-lane-{comm.rank}", daemon=True)
        self._thread.start()

    @property
    def rank(self) -> int:
        return self.comm.rank

    def abandon(self, error: BaseException) -> None:
        """A forked child has no lane: its thread is the parent's, which may have held the lock."""
        self._abandoned, self._wake, self._closed = error, threading.Condition(), True

    def submit(self, work: Callable[[], None]) -> Pending:
        return self._submit(_Job(self._stream, rest=work))

    def submit_parts(self, work: Callable[[], Callable[[], None]]) -> Pending:
        """The first part returns the second."""
        return self._submit(_Job(self._stream, first=work))

    def _submit(self, job: _Job) -> Pending:
        with self._wake:
            if self._abandoned is not None:
                raise self._abandoned
            if self._closed:
                raise RuntimeError("the lane is closed")
            self._jobs.append(job)
            self._wake.notify()
            if self._begun:
                self._ring()
        return job

    def take_busy(self) -> float:
        """Seconds of work since the last call."""
        busy, self.busy = self.busy, []
        return sum(end - begin for begin, end in busy)

    def close(self, patience: float | None = None) -> None:
        """Do what has been submitted, for so many seconds at most; then what still waits is interrupted."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)
            if self._thread.is_alive():
                self.comm.interrupt(RunFailed(f"worker {self.comm.rank} ended its run while it waited for others"))
                self._thread.join()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._begun and not self._closed:
                    self._wake.wait()
                if not self._jobs and not self._begun:
                    return
            self._time(self._begin_all)
            self._time(self._begun[0].complete)
            self._begun.popleft().finished.set()

    def _next(self) -> _Job | None:
        """What may begin; nothing beside one that is whole."""
        with self._wake:
            begun = self._begun
            free = bool(self._jobs) and (not begun or (begun[-1].has_parts and self._jobs[0].has_parts))
            return self._jobs.popleft() if free else None

    def _begin_all(self) -> None:
        """All that may begin; also while one is being completed, if the bell rings."""
        if threading.current_thread() is self._thread:  # not whoever else waits in this comm
            while (job := self._next()) is not None:
                self._begun.append(job)
                job.begin()

    def _time(self, part: Callable[[], None]) -> None:
        begin = self.comm.clock.now()
        part()
        self.busy.append((begin, self.comm.clock.now()))


class _Job(Pending):
    """A function on the lane, in two parts or (`rest`) in one, with the CUDA events around it if there is a stream."""

    def __init__(
        self,
        stream: torch.cuda.Stream | None,
        first: Callable[[], Callable[[], None]] | None = None,
        rest: Callable[[], None] | None = None,
    ) -> None:
        self.finished = threading.Event()
        self.has_parts = first is not None
        self._first, self._rest, self._stream = first, rest, stream
        self._error: BaseException | None = None
        self._ready = torch.cuda.current_stream(stream.device).record_event() if stream is not None else None
        self._done: torch.cuda.Event | None = None

    def begin(self) -> None:
        with self._on_stream():
            if self._stream is not None and self._ready is not None:
                self._stream.wait_event(self._ready)
            if self._first is not None:
                self._rest = self._first()

    def complete(self) -> None:
        with self._on_stream():
            if self._rest is not None:
                self._rest()
            if self._stream is not None:
                self._done = self._stream.record_event()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Errors are for whoever waits."""
        try:
            with torch.cuda.stream(self._stream):  # None changes nothing
                yield
        except BaseException as error:
            self._error = error

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        if not self.finished.wait(deadline):
            return LOST
        if self._error is not None:
            raise self._error
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)
        return torch.empty(0)
