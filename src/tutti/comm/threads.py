"""N workers as threads of one process: the same contract with no sockets, for tests, notebooks and simulations.

A message is handed over by reference and copied once, by the receiver. In strict mode it has NCCL's limits: no tags,
first in first out per pair, only grouped sends and receives (`exchange`), nobody may receive from any.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import LOST, SILENCE, Comm, Lost, Message, Mismatch, Pending
from tutti.comm.forked import leave_to_parent
from tutti.comm.waits import Wait
from tutti.errors import UserError

MAIN = "main"  # the wire that is no fork


class World:
    """What the workers of one process share; `comm(rank)` is one worker's end of it."""

    def __init__(
        self, size: int, *, strict: bool = False, timeout: float = SILENCE, clock: Clock | None = None
    ) -> None:
        self.size, self.strict, self.timeout, self.clock = size, strict, timeout, clock or Clock()
        self._boxes: dict[str, list[_Box]] = {}
        self._lock = threading.Lock()
        self.dead: int | None = None
        self._left: set[tuple[str, int]] = set()

    def comm(self, rank: int) -> ThreadsComm:
        return ThreadsComm(self, rank, MAIN)

    def boxes(self, name: str) -> list[_Box]:
        with self._lock:
            return self._boxes.setdefault(name, [_Box() for _ in range(self.size)])

    def abort(self, rank: int) -> None:
        """Worker `rank` is dead: every wait of the others ends."""
        with self._lock:
            self.dead = rank if self.dead is None else self.dead
            boxes = [box for row in self._boxes.values() for box in row]
        _wake_all(boxes)

    def leave(self, rank: int, name: str = MAIN) -> None:
        """Worker `rank` sends no more on this wire: those who wait for it there are woken."""
        self._left.add((name, rank))
        _wake_all(self.boxes(name))

    def have_left(self, name: str, ranks: Sequence[int]) -> bool:
        return bool(self._left) and all((name, rank) in self._left for rank in ranks)


def _wake_all(boxes: Sequence[_Box]) -> None:
    for box in boxes:
        with box.wake:
            box.wake.notify_all()


@dataclass
class _Box:
    """What is on its way to one worker, by sender; and the condition that only this worker waits on, for `awaited`."""

    wake: threading.Condition = field(default_factory=threading.Condition)
    awaited: Callable[[], bool] | None = None
    letters: dict[int, deque[_Letter]] = field(default_factory=dict)
    late: Counter[tuple[int, str]] = field(default_factory=Counter)

    def call(self) -> None:
        """Something has changed: wake the worker up if it is what that one waits for, and leave it alone if not."""
        if self.awaited is not None and self.awaited():
            self.wake.notify()


@dataclass(eq=False)
class _Letter:
    tag: str
    tensor: Tensor
    taken: bool = False


class ThreadsComm(Comm):
    """One worker's end; see the module."""

    wire = "threads"

    def __init__(self, world: World, rank: int, name: str) -> None:
        self.rank, self.size, self.clock, self.timeout = rank, world.size, world.clock, world.timeout
        self.world, self._name = world, name
        self._boxes = world.boxes(name)
        self._forks = 0
        self._interruption: BaseException | None = None
        leave_to_parent(self)

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        self._grouped_only()
        return self._post(peer, tensor, tag)

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        self._grouped_only()
        return _Receive(self, peer, tensor, tag)

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        self.start_exchange(sends, recvs, tag)()

    def start_exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        posted = [self._post(peer, tensor, tag) for peer, tensor in sends]

        def complete() -> list[bool]:
            for peer, tensor in recvs:
                _Receive(self, peer, tensor, tag).wait()
            for pending in posted:
                pending.wait()
            return [True] * len(recvs)

        return complete

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        self._grouped_only()
        found: list[int] = []

        def arrived() -> bool:
            found.extend(s for s in sources if self.find(s, tag) is not None)
            return bool(found)

        self.until(arrived, Wait(self.rank, sources, tag), None)
        self.take(found[0], tensor, tag)
        return found[0]

    def fork(self, name: str) -> ThreadsComm:
        self._forks += 1
        return ThreadsComm(self.world, self.rank, f"{self._name}/{name}-{self._forks}")

    def interrupt(self, error: BaseException) -> None:
        if self._interruption is None:
            self._interruption = error
        wake = self._boxes[self.rank].wake
        with wake:
            wake.notify_all()

    def abandon(self, error: BaseException) -> None:
        self._interruption = error

    def close(self) -> None:
        """A fork is left for good; the wire itself, which the thread keeps, when the worker's function ends."""
        self._interruption = None
        if self._name != MAIN:
            self.world.leave(self.rank, self._name)

    # --- the machinery -----------------------------------------------------------------------------------------------

    def _grouped_only(self) -> None:
        if self.world.strict:
            raise UserError("this wire takes only grouped messages (as NCCL does): use exchange(sends, recvs)")

    def _check(self) -> None:
        if self._interruption is not None:
            raise self._interruption.with_traceback(None)

    def _post(self, peer: int, tensor: Tensor, tag: str) -> _Sent:
        self._check()
        letter = _Letter(tag, tensor.detach())
        box = self._boxes[peer]
        with box.wake:
            if box.late[self.rank, tag]:
                box.late[self.rank, tag] -= 1
                letter.taken = True
            else:
                box.letters.setdefault(self.rank, deque()).append(letter)
                box.call()
        return _Sent(self, peer, letter)

    def find(self, peer: int, tag: str) -> _Letter | None:
        """The letter that a receive from this peer would take now."""
        letters = self._boxes[self.rank].letters.get(peer, ())
        if self.world.strict:
            return letters[0] if letters else None
        return next((letter for letter in letters if letter.tag == tag), None)

    def take(self, peer: int, tensor: Tensor, tag: str) -> None:
        box = self._boxes[self.rank]
        with box.wake:
            letter = self.find(peer, tag)
            assert letter is not None
            box.letters[peer].remove(letter)
        if letter.tensor.numel() != tensor.numel() or letter.tensor.dtype != tensor.dtype:
            raise Mismatch(
                f"worker {peer} sent {letter.tensor.numel()} elements of {letter.tensor.dtype} where worker "
                f"{self.rank} expected {tensor.numel()} of {tensor.dtype} ({tag})"
            )
        tensor.detach().copy_(letter.tensor.view_as(tensor))
        sender = self._boxes[peer]
        with sender.wake:
            letter.taken = True
            sender.call()

    def until(self, ready: Callable[[], bool], wait: Wait, deadline: float | None) -> bool:
        """Wait on this worker's own condition; False when the caller's deadline passed."""
        box = self._boxes[self.rank]
        limit = self.clock.now() + (self.timeout if deadline is None else deadline)
        self._check()
        with box.wake:
            self._check()
            while not ready():
                if self.world.dead is not None:
                    raise wait.died(self.world.dead)
                if self.world.have_left(self._name, wait.peers):
                    raise wait.left()
                left = limit - self.clock.now()
                if left <= 0:
                    if deadline is not None:
                        return False
                    raise wait.silent(self.timeout)
                box.awaited = ready
                box.wake.wait(left)
                box.awaited = None
                self._check()
        return True

    def give_up(self, peer: int, tag: str) -> bool:
        """A deadline passed: the message, should it still come, is thrown away. False if it came at the last moment."""
        box = self._boxes[self.rank]
        with box.wake:
            if self.find(peer, tag) is not None:
                return False
            box.late[peer, tag] += 1
            return True


class _Sent(Pending):
    def __init__(self, comm: ThreadsComm, peer: int, letter: _Letter) -> None:
        self._comm, self._peer, self._letter = comm, peer, letter

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        wait = Wait(self._comm.rank, (self._peer,), self._letter.tag, sends=True)
        taken = self._comm.until(lambda: self._letter.taken, wait, deadline)
        return self._letter.tensor if taken else LOST


class _Receive(Pending):
    def __init__(self, comm: ThreadsComm, peer: int, tensor: Tensor, tag: str) -> None:
        self._comm, self._peer, self._tensor, self._tag = comm, peer, tensor, tag

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        comm, peer, tag = self._comm, self._peer, self._tag
        wait = Wait(comm.rank, (peer,), tag)
        arrived = comm.until(lambda: comm.find(peer, tag) is not None, wait, deadline)
        if not arrived and comm.give_up(peer, tag):
            return LOST
        comm.take(peer, self._tensor, tag)
        return self._tensor
