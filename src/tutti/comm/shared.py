"""Our wire between workers of one machine: memory that both have mapped instead of sockets; sockets to all others.

Each pair shares two pipes, one per direction (pipes.py). The frames in them are those of the tcp wire, so that
everything above the connection is the same. A worker that finds nothing to do gives way a few times, then says so in
the pipe and sleeps on the sockets, where whoever moves the pipe next wakes it by a byte. The sockets also tell of a
peer's death.

Long messages from memory that `zeros` has given out (see window.py) do not go through the ring: the writer lends them,
the reader takes them from where they are, and a send is complete when its loan is back. What is written to a peer in a
draft (`Comm.drafts`) lies in the peer's own memory before it is sent, and the message says only that it is there.

The memory of the pipes is a file in /dev/shm without a name as soon as both ends have it, so that nothing stays behind.
Positions are published behind the bytes they speak of; that order is kept by x86 processors only, and elsewhere, or
where a worker is in another network namespace, container or machine, or with TLS, the sockets do all the work.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import Comm, Message, Step
from tutti.comm.handshake import Access
from tutti.comm.link import Add, Link
from tutti.comm.pipes import LINE, NOWHERE, POSITIONS, SHORT, Pipes
from tutti.comm.tcp import TcpComm
from tutti.comm.window import Place, windows
from tutti.machine import name_host

_FOLDER = Path("/dev/shm")
_ROOM = 2**23  # bytes of all the pipes to one worker's peers, more or less
_LEAST_ROOM = 2**18  # bytes of one pipe
_NAP = 0.05  # seconds; the longest sleep between two looks at the memory, should a wake-up call get lost
_TURNS = 100  # looks without sleeping, where there is memory to look at
_LOOKS = 32  # at the memory, for one at the sockets


class SharedComm(TcpComm):
    """One worker's end; see the module."""

    wire = "shared"

    def __init__(
        self, rank: int, size: int, store: dist.Store, access: Access, clock: Clock | None = None, mesh: str = "main"
    ) -> None:
        super().__init__(rank, size, store, access, clock, mesh)
        self._near: list[tuple[Link, Pipes]] = []
        self._all_near, self._looks = False, 0
        machine = _find_machine() if access.tls is None else ""
        self._near = self._map_memory(self._find_near(machine))
        self._all_near = len(self._near) == len(self._links)
        self._show_windows()
        self.wire = "shared" if self._near or size == 1 else "tcp"
        self.turns = _TURNS if self._near else TcpComm.turns
        self._pipes = {link.peer: pipes for link, pipes in self._near}
        self.barrier()  # nobody says goodbye in memory that another has not looked at yet

    def _find_near(self, machine: str) -> list[int]:
        """The peers on the same machine; every worker comes here, also one that is alone on its own."""
        rows = {peer: torch.zeros(128, dtype=torch.uint8) for peer in self._links}
        mine = _to_tensor(machine)
        self.exchange([(peer, mine) for peer in rows], list(rows.items()), "control/machine")
        return [peer for peer in sorted(rows) if machine and _to_text(rows[peer]) == machine]

    def _map_memory(self, peers: list[int]) -> list[tuple[Link, Pipes]]:
        """The lower rank of a pair makes the file; a pair that cannot map it stays with its sockets."""
        room = max(_LEAST_ROOM, _ROOM // self.size) // LINE * LINE
        offers = {peer: _make_file(2 * (POSITIONS + room)) for peer in peers if peer > self.rank}
        names = {peer: torch.zeros(128, dtype=torch.uint8) for peer in peers if peer < self.rank}
        answers = {peer: torch.zeros(1) for peer in offers}
        try:
            sends = [(peer, _to_tensor(name)) for peer, (name, _) in offers.items()]
            self.exchange(sends, list(names.items()), "control/memory")
            taken = {peer: _open_file(_to_text(name)) for peer, name in names.items()}
            sends = [(peer, torch.full((1,), float(memory is not None))) for peer, memory in taken.items()]
            self.exchange(sends, list(answers.items()), "control/memory")
        finally:
            for name in (name for name, _ in offers.values() if name):
                Path(name).unlink(missing_ok=True)
        made = {peer: memory for peer, (_, memory) in offers.items() if answers[peer].item()}
        return [self._join(peer, memory) for peer, memory in sorted({**made, **taken}.items()) if memory is not None]

    def _join(self, peer: int, memory: mmap.mmap) -> tuple[Link, Pipes]:
        link = self._links[peer]
        link.connection = pipes = Pipes(link, memory, first=self.rank < peer)  # type: ignore[assignment]
        link.far = False
        return link, pipes

    def _show_windows(self) -> None:
        """Everybody looks at every near peer's windows, and lends only to those that could see his own."""
        mine = torch.tensor([os.getpid(), -1, 0])
        with suppress(OSError):
            mine = torch.tensor([os.getpid(), windows().fd, windows().number])
        theirs = {pipes.peer: torch.zeros(3, dtype=torch.int64) for _, pipes in self._near}
        answers = {peer: torch.zeros(1) for peer in theirs}
        TcpComm.exchange(self, [(peer, mine) for peer in theirs], list(theirs.items()), "control/memory")
        could = {pipes.peer: pipes.look_out(*theirs[pipes.peer].tolist()) for _, pipes in self._near}
        sends = [(peer, torch.full((1,), float(sees))) for peer, sees in could.items()]
        TcpComm.exchange(self, sends, list(answers.items()), "control/memory")
        for _, pipes in self._near:
            pipes.lends = bool(answers[pipes.peer].item())

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type == "cpu" and count * dtype.itemsize > SHORT and any(pipes.lends for _, pipes in self._near):
            with suppress(OSError):
                return windows().zeros(count, dtype)
        return super().zeros(count, dtype, device)

    def drafts(self, turns: Sequence[Sequence[Message]], tag: str) -> list[list[Tensor]]:
        """The landings of near peers, where they are long; of others' there is one for all turns."""
        places = range(len(turns[0]))
        reached = [self._reach(landings, tag) for landings in turns]
        missing = [at for at in places if any(drafts[at] is None for drafts in reached)]
        (plain,) = super().drafts([[turns[0][at] for at in missing]], tag)
        stand_ins = dict(zip(missing, plain, strict=True))
        return [[stand_ins[at] if at in stand_ins else cast(Tensor, drafts[at]) for at in places] for drafts in reached]

    def _reach(self, landings: Sequence[Message], tag: str) -> list[Tensor | None]:
        """Every peer's landing for what this worker sends; None where it cannot be reached."""
        peers = [peer for peer, _ in landings]
        mine = [self._pipes[peer].open(tensor) if peer in self._pipes else NOWHERE for peer, tensor in landings]
        theirs = [torch.zeros(len(NOWHERE), dtype=torch.int64) for _ in landings]
        sends = [(peer, torch.tensor(place)) for peer, place in zip(peers, mine, strict=True)]
        self.exchange(sends, list(zip(peers, theirs, strict=True)), tag)
        places = [Place(*place.tolist()) for place in theirs]
        return [
            self._pipes[peer].reach(place, landing) if place != NOWHERE else None
            for (peer, landing), place in zip(landings, places, strict=True)
        ]

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        """Short messages straight into and out of the memory, where nothing else is under way."""
        if not self._all_near:
            super().exchange(sends, recvs, tag)
            return
        self._check()
        code, pipes = self._code(tag), self._pipes
        sent = [self.send(peer, tensor, tag) for peer, tensor in sends if not pipes[peer].post(code, tensor)]
        missing, may_come = self._fetch(code, recvs)
        turns = 0 if sent else self.turns
        while missing and may_come and turns:
            turns = turns - 1 if self._give_way() else 0
            missing, may_come = self._fetch(code, missing)
        received = [self.recv(peer, tensor, tag) for peer, tensor in missing]
        for each in (*received, *sent):
            each.wait()

    def start_exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        if all(tensor.nbytes <= SHORT for _, tensor in (*sends, *recvs)):
            return Comm.start_exchange(self, sends, recvs, tag)
        return super().start_exchange(sends, recvs, tag)

    def _fetch(self, code: int, messages: Sequence[Message]) -> tuple[list[Message], bool]:
        """Take those that are there and return the others, and whether these may come this way. Of one peer's none is
        taken before those that come first."""
        missing: list[Message] = []
        may_come = True
        for message in messages:
            peer, tensor = message
            fetched: bool | None = False
            if not any(peer == other for other, _ in missing):
                fetched = self._pipes[peer].fetch(code, tensor)
            if not fetched:
                missing.append(message)
                may_come = may_come and fetched is not None
        return missing, may_come

    def accumulate(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        if all(tensor.nbytes <= SHORT for _, tensor in recvs):
            Comm.accumulate(self, sends, recvs, tag)
        else:
            super().accumulate(sends, recvs, tag)

    def stream(self, steps: Sequence[Step], lag: int, tag: str) -> None:
        if all(step.into is None or step.into[1].nbytes <= SHORT for step in steps):
            Comm.stream(self, steps, lag, tag)
        else:
            super().stream(steps, lag, tag)

    def _read_header(self, link: Link) -> bool:
        """What is left of a sum on loan is added from where it is."""
        if not super()._read_header(link):
            return False
        receive, pipes = link.receive, link.connection
        if isinstance(receive, Add) and isinstance(pipes, Pipes) and link.body is not None:
            source = pipes.borrow(receive.left) if len(link.body) == len(receive.view) else None  # no half elements
            if source is not None and source.data_ptr() % receive.tensor.element_size() == 0:
                receive.add_rest(source)
                pipes.give_back(len(source))
                link.body = link.body[:0]
        return True

    def _write(self, link: Link) -> None:
        if not isinstance(link.connection, Pipes):
            super()._write(link)
            return
        outbox = link.outbox
        with suppress(BlockingIOError):  # no room
            while outbox and link.put(outbox[0]):
                outbox.popleft().done = True

    def _progress(self, seconds: float) -> bool:
        self._check()
        moved = self._look()
        self._looks += 1
        if not self._all_near or self._looks % _LOOKS == 0:
            moved = super()._progress(0) or moved
        if moved or seconds == 0:
            return moved
        for _, pipes in self._near:
            pipes.sleep()
        return self._look() or super()._progress(min(seconds, _NAP)) or self._look()

    def _look(self) -> bool:
        """Move what can move in the memory."""
        moved = False
        for link, pipes in self._near:
            if pipes.readable() and not link.closed:
                moved = True
                self._read(link)
            if link.outbox and pipes.writable():
                moved = True
                link.heard = self.clock.now()
                self._write(link)
        return moved

    def _serve(self, link: Link, event: int) -> None:
        """Of a near peer the socket has wake-up calls, and the end of the connection."""
        if not isinstance(link.connection, Pipes):
            super()._serve(link, event)
        elif link.connection.answer():
            self._read(link)


# --- where the memory comes from -------------------------------------------------------------------------------------


def _find_machine() -> str:
    """The same text on every worker that may share memory with this one; empty where none may."""
    if platform.machine() not in ("x86_64", "AMD64") or not _FOLDER.is_dir():
        return ""
    return f"{name_host()} {os.getuid()}"


def _make_file(nbytes: int) -> tuple[str, mmap.mmap | None]:
    """A new file that only this user can open, mapped; no name where there is no room for it."""
    path = _FOLDER / f"tutti-{os.urandom(16).hex()}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, nbytes)  # now, or a full /dev/shm would end the worker at the first touch
            return str(path), mmap.mmap(fd, 0)
        finally:
            os.close(fd)
    except OSError:
        path.unlink(missing_ok=True)
        return "", None


def _open_file(path: str) -> mmap.mmap | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            return mmap.mmap(fd, 0)
        finally:
            os.close(fd)
    except OSError:
        return None


def _to_tensor(text: str) -> Tensor:
    return torch.tensor(list(struct.pack("128s", text.encode())), dtype=torch.uint8)


def _to_text(tensor: Tensor) -> str:
    return bytes(tensor.tolist()).rstrip(b"\0").decode()
