"""A comm on which messages get lost, each with probability p; it counts what passes, as a metered comm does.

A lost message has passed the wire and is worth nothing at its end, as one whose checksum is wrong. `start_exchange`
goes on without it. Everybody else gets everything: the sender, to whom nobody says that it came, sends it again after
one deadline, and again if that one is lost too. Both ends are held up by so many deadlines; nobody else is.

    bytes sent      S for every copy, lost or not
    bytes received  S, or nothing where `start_exchange` goes on without it

Nothing is left to chance: whether a message is lost is a hash of the seed and of what the message is called (wire,
sender, receiver, tag, the how-many-eth, the how-many-eth copy of it). Both ends compute it, so that they need not tell
each other, and a run can be repeated whatever its workers are and however long they take. What is lost at one p is also
lost at every higher one. Only traffic of certain kinds gets lost: never what holds a run together.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import KINDS, LOST, Comm, Lost, Message, Pending, Step
from tutti.comm.metered import Counted, Meter, Metered
from tutti.errors import UserError

LOSSY_KINDS = ("gradients", "weights")


@dataclass(frozen=True)
class Loss:
    """How much gets lost, of what, and how long it takes a sender to notice."""

    p: float
    seed: int = 0
    deadline: float = 0.05  # seconds
    kinds: tuple[str, ...] = LOSSY_KINDS

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise UserError(f"the share of messages that get lost must be at least 0 and below 1, not {self.p:g}")
        if not self.deadline >= 0:
            raise UserError(f"the deadline after which lost messages are sent again must not be {self.deadline:g} s")
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise UserError(f"there is no traffic of the kind '{unknown[0]}' to lose; there is {', '.join(KINDS)}")

    def strikes(self, tag: str) -> bool:
        """Whether messages of this tag can get lost at all."""
        return self.p > 0 and tag.partition("/")[0] in self.kinds

    def draw(self, message: str, copy: int = 0) -> bool:
        """Whether this copy of the message is lost: the same answer for everybody who asks."""
        digest = blake2b(f"{self.seed} {message} {copy}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.p * 2**64

    def count(self, message: str) -> int:
        """How many copies of it are lost before one arrives."""
        return next(copy for copy in itertools.count() if not self.draw(message, copy))


def check_wire(wire: str) -> None:
    if wire == "torch":
        raise UserError("messages cannot get lost on torch's wire, which is its backend's; use --wire shared or tcp")


class Lossy(Metered):
    """One worker's end; see the module. It takes over the meter of a comm that is metered already."""

    def __init__(
        self, comm: Comm, p: float, seed: int = 0, deadline: float = 0.05, kinds: Sequence[str] = LOSSY_KINDS
    ) -> None:
        self.loss = Loss(p, seed, deadline, tuple(kinds))
        check_wire(comm.wire)
        super().__init__(*((comm.inner, comm.meter) if isinstance(comm, Metered) else (comm, Meter())))
        self._name = "main"  # of this wire, among its forks
        self._forks: list[Lossy] = []
        self._sent: Counter[tuple[int, str]] = Counter()  # messages so far, by peer and tag
        self._received: Counter[tuple[int, str]] = Counter()

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        if not self.loss.strikes(tag):
            return super().send(peer, tensor, tag)
        lost = self.loss.count(self._next_sent(peer, tag))
        self.meter.count_lost(tag, peer, lost)
        copies = [self.inner.send(peer, tensor, tag) for _ in range(lost + 1)]
        count = partial(self.meter.count, tag, [(peer, tensor)] * len(copies), [])
        return Counted(_Resent(copies, lost * self.loss.deadline, self.clock), count, self.clock)

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        if not self.loss.strikes(tag):
            return super().recv(peer, tensor, tag)
        lost = self.loss.count(self._next_received(peer, tag))
        landing = torch.empty_like(tensor) if lost else tensor  # until the deadlines are over there is nothing to see
        copies = [self.inner.recv(peer, landing, tag) for _ in range(lost + 1)]
        count = partial(self.meter.count, tag, [], [(peer, tensor)])
        return Counted(_Resent(copies, lost * self.loss.deadline, self.clock, tensor), count, self.clock)

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        if not self.loss.strikes(tag):
            super().exchange(sends, recvs, tag)
            return
        begun = self.clock.now()
        out, into = self._lose(sends, recvs, tag)
        copies = _repeat(sends, out)
        self.inner.exchange(copies, _repeat(recvs, into), tag)
        self._wait_for_copies(out, into)
        self.meter.count(tag, copies, recvs, self.clock.now() - begun)

    def start_inner(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        if not self.loss.strikes(tag):
            return super().start_inner(sends, recvs, tag)
        for peer, _ in sends:
            self.meter.count_lost(tag, peer, int(self.loss.draw(self._next_sent(peer, tag))))
        arrived = [not self.loss.draw(self._next_received(peer, tag)) for peer, _ in recvs]
        landings = [_aside(message) if not here else message for message, here in zip(recvs, arrived, strict=True)]
        complete = super().start_inner(sends, landings, tag)

        def tell() -> list[bool]:
            complete()
            return arrived

        return tell

    def accumulate(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        if not self.loss.strikes(tag):
            super().accumulate(sends, recvs, tag)
            return
        begun = self.clock.now()
        out, into = self._lose(sends, recvs, tag)
        copies, landings = _repeat(sends, out), []
        for message, lost in zip(recvs, into, strict=True):
            landings += [_aside(message)] * lost + [message]
        self.inner.accumulate(copies, landings, tag)
        self._wait_for_copies(out, into)
        self.meter.count(tag, copies, recvs, self.clock.now() - begun)

    def stream(self, steps: Sequence[Step], lag: int, tag: str) -> None:
        """One exchange after another where something may get lost: a copy more in a stream would shift its lag."""
        if self.loss.strikes(tag):
            Comm.stream(self, steps, lag, tag)
        else:
            super().stream(steps, lag, tag)

    def drafts(self, turns: Sequence[Sequence[Message]], tag: str) -> list[list[Tensor]]:
        """What is written must not have arrived: it may get lost."""
        return Comm.drafts(self, turns, tag) if self.loss.strikes(tag) else super().drafts(turns, tag)

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        """The first of which a copy comes, lost or not, is waited for."""
        if not self.loss.strikes(tag):
            return super().recv_any(sources, tensor, tag)
        begun = self.clock.now()
        peer = self.inner.recv_any(sources, tensor, tag)
        lost = self.loss.count(self._next_received(peer, tag))
        for _ in range(lost):
            self.inner.recv(peer, tensor, tag).wait()
        self._wait_for_copies([lost], [])
        self.meter.count(tag, [], [(peer, tensor)], self.clock.now() - begun)
        return peer

    def fork(self, name: str) -> Lossy:
        inner, loss = Metered(self.inner.fork(name), self.meter), self.loss
        fork = Lossy(inner, loss.p, loss.seed, loss.deadline, loss.kinds)
        self._forks.append(fork)
        fork._name = f"{self._name}/{name}-{len(self._forks)}"
        return fork

    @property
    def native(self) -> Comm:
        if type(self.inner).native is Comm.native:
            return self  # there is no backend
        raise UserError(
            "a backend's own operations (native, torch-ddp) lose no messages of ours; take a route such as ring, "
            "or leave --loss out"
        )

    def state_dict(self) -> dict[str, Any]:
        """Which message comes next, here and on the forks: with it a run that goes on loses the same ones."""
        counts = ([[*key, count] for key, count in counter.items()] for counter in (self._sent, self._received))
        return {"counts": list(counts), "forks": [fork.state_dict() for fork in self._forks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing may be under way, and the forks are those that there were."""
        sent, received = ({(peer, tag): count for peer, tag, count in rows} for rows in state["counts"])
        self._sent, self._received = Counter(sent), Counter(received)
        for fork, saved in zip(self._forks, state["forks"], strict=True):
            fork.load_state_dict(saved)

    def _lose(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> tuple[list[int], list[int]]:
        """How many copies of each message get lost."""
        out = [self.loss.count(self._next_sent(peer, tag)) for peer, _ in sends]
        for (peer, _), lost in zip(sends, out, strict=True):
            self.meter.count_lost(tag, peer, lost)
        return out, [self.loss.count(self._next_received(peer, tag)) for peer, _ in recvs]

    def _wait_for_copies(self, out: list[int], into: list[int]) -> None:
        """All copies have passed at once, so that nobody waits for what is not lost; now the deadlines pass."""
        _sleep(self.clock, max((*out, *into), default=0) * self.loss.deadline)

    def _next_sent(self, peer: int, tag: str) -> str:
        """What the next message to this peer is called."""
        self._sent[peer, tag] += 1
        return f"{self._name} {self.rank} {peer} {tag} {self._sent[peer, tag]}"

    def _next_received(self, peer: int, tag: str) -> str:
        self._received[peer, tag] += 1
        return f"{self._name} {peer} {self.rank} {tag} {self._received[peer, tag]}"


def _repeat(messages: Sequence[Message], times: list[int]) -> list[Message]:
    """Every message, and so many copies of it more; they are all the same, so that one place will do for them."""
    return [message for message, more in zip(messages, times, strict=True) for _ in range(more + 1)]


def _aside(message: Message) -> Message:
    """Where a lost message goes."""
    return message[0], torch.empty_like(message[1])


def _sleep(clock: Clock, seconds: float) -> None:
    if seconds > 0:
        clock.sleep(seconds)


class _Resent(Pending):
    """All copies of one message, and the deadlines that have to pass between them.

    Whoever gives less time than that gets `LOST`, and no copy that is still to come is taken for another message.
    """

    def __init__(self, copies: list[Pending], delay: float, clock: Clock, into: Tensor | None = None) -> None:
        self._copies, self._delay, self._clock, self._into = copies, delay, clock, into
        self._done: Tensor | None = None

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        if self._done is not None:
            return self._done
        if deadline is not None and deadline < self._delay:
            _sleep(self._clock, deadline)
            self._give_up(self._copies)
            return LOST
        tensor = self._take(None if deadline is None else self._clock.now() + deadline - self._delay)
        if isinstance(tensor, Lost):
            return LOST
        _sleep(self._clock, self._delay)
        if self._into is not None and self._into is not tensor:
            self._into.detach().copy_(tensor)
            tensor = self._into
        self._done = tensor
        return tensor

    def _take(self, limit: float | None) -> Tensor | Lost:
        """What the last copy brought, if all have come by then."""
        result: Tensor | Lost = LOST
        for place, copy in enumerate(self._copies):
            result = copy.wait(None if limit is None else max(0.0, limit - self._clock.now()))
            if isinstance(result, Lost):
                self._give_up(self._copies[place + 1 :])
                break
        return result

    def _give_up(self, copies: list[Pending]) -> None:
        for copy in copies:
            copy.wait(0.0)
