"""A delay line in user space: latency between hosts and their switch, for kernels without netem.

A host's `eth0` and its port of the bridge are two TAP devices. Another process holds the descriptors of both, reads a
frame from one, keeps it for the delay and writes it to the other: in order, in both directions, at whatever rate the
devices deliver. They leave segments and checksums to the receiver, so that frames of up to 64 KiB pass whole; this is
what lets Python carry gigabits per second. A device exists as long as its descriptor: nothing can be left behind.

Run as a module this file is that process. Its standard input is a socket: a message on it may bring the descriptors of
another pair and is answered with the tally so far; the end of the socket, whoever caused it, is the end of the process.
One process serves all hosts: it takes about 60 % of the CPU time that one for each would.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import select
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tutti.clock import Clock
from tutti.errors import RunFailed, UserError
from tutti.hosts.namespaces import Namespace

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # linux/if_tun.h
_TAP: Final = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR: whole frames behind an offload header
_OFFLOADS: Final = 0x01 | 0x02 | 0x04  # TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6
_NOT_OFFERED: Final = {errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EACCES, errno.EPERM}

_WAITING_FRAMES: Final = 4096  # that a device keeps while nobody reads
_LONGEST_FRAME: Final = (1 << 16) + 64  # 64 KiB and the headers before it
_PAYLOAD: Final = 0.9  # of a burst; the rest is for the headers of the small frames that a large one stands for
_LONGEST_BURST: Final = 72_800  # bytes; more would not make frames any larger
_AT_ONCE: Final = 16  # frames read from one device before the others get their turn
_SPARE: Final = 16 << 20  # bytes of room beyond twice what the rate puts under way
_UNLIMITED: Final = 10e9  # bits per second that stand for a link without a rate


class Tally(NamedTuple):
    """What a delay line has done so far; dropped frames and lateness tell whether it kept up."""

    frames: int
    dropped: int  # for want of room
    lateness: float  # seconds beyond the delay, the mean of all frames
    latest: float  # and the worst


def largest_frame(burst: int) -> int:
    """What a device of the network may send as one (its `gso_max_size`): a queue would cut what exceeds its burst into
    many small frames, too many for us. The bridge sends by itself and needs the limit too."""
    return round(_PAYLOAD * min(burst, _LONGEST_BURST))


def open_tap(name: str, namespace: Namespace) -> int:
    """The non-blocking descriptor of a new TAP device in the namespace."""
    return namespace.run(lambda: _open_tap_here(name))


def _open_tap_here(name: str) -> int:
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        try:
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP))
            fcntl.ioctl(device, _TUNSETOFFLOAD, _OFFLOADS)
        except OSError:
            os.close(device)
            raise
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
        raise UserError(
            f"latency needs netem in the kernel or /dev/net/tun; this machine has neither ({error.strerror})"
        ) from None
    return device


class DelayLine:
    """Joins pairs of devices, each made here and gone with the line; what enters one leaves the other `delay` later."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tutti.hosts.delay", repr(delay)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
                start_new_session=True,  # Ctrl-C is for those who use the line
            )
        self.tally()

    @property
    def pid(self) -> int:
        return self._process.pid

    def join(
        self,
        near: tuple[Namespace, str],
        far: tuple[Namespace, str],
        rate: float | None = None,
        burst: int = _LONGEST_BURST,
    ) -> None:
        """Make both devices, given as (where, name), and pass frames between them from now on.

        The rate (bits per second) says how much may be under way; what goes far beyond that is dropped. The burst is
        that of the devices' queues, the least one where they differ.
        """
        limit = _SPARE + round(2 * self.delay * (rate or _UNLIMITED) / 8)
        devices: list[int] = []
        try:
            for namespace, name in (near, far):
                devices.append(open_tap(name, namespace))
                namespace.ip(f"link set {name} txqueuelen {_WAITING_FRAMES} gso_max_size {largest_frame(burst)}")
            self._ask(str(limit), devices)
        finally:
            for device in devices:
                os.close(device)

    def tally(self) -> Tally:
        return self._ask("tally", [])

    def close(self) -> None:
        """The process and its devices are gone when this returns; further calls do nothing."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, message: str, devices: Sequence[int]) -> Tally:
        try:
            socket.send_fds(self._control, [message.encode()], devices)
            answer = self._control.recv(4096)
        except OSError:
            answer = b""
        if not answer:
            self.close()
            raise RunFailed("the process that delays frames has ended, and the hosts' network with it")
        return Tally(*json.loads(answer))


class Relay:
    """The process's work: one queue for all devices, since the first frame to come is the first to be due."""

    def __init__(self, control: socket.socket, delay: float, clock: Clock) -> None:
        self.control, self.delay, self.clock = control, delay, clock
        self.watched = [control.fileno()]
        self.partner: dict[int, int] = {}
        self.room: dict[int, int] = {}  # bytes that may still be put under way to each device
        self.queue: deque[tuple[float, int, bytes]] = deque()  # when it is due, where to, the frame
        self.frames = self.dropped = 0
        self.late = self.latest = 0.0

    def run(self) -> None:
        while True:
            ready, _, _ = select.select(self.watched, (), (), self.pause())  # epoll counts in milliseconds
            for descriptor in ready:
                if descriptor in self.partner:
                    self.take(descriptor)
                elif not self.answer():
                    return
            self.give()

    def join(self, near: int, far: int, limit: int) -> None:
        self.partner |= {near: far, far: near}
        self.room |= {near: limit, far: limit}
        self.watched += [near, far]

    def pause(self) -> float | None:
        """Seconds until the next frame is due."""
        return max(0.0, self.queue[0][0] - self.clock.now()) if self.queue else None

    def take(self, device: int) -> None:
        """Read what has come to a device; one that is gone is no longer looked at."""
        due, sink = self.clock.now() + self.delay, self.partner[device]
        try:
            for _ in range(_AT_ONCE):
                self.keep(due, sink, os.read(device, _LONGEST_FRAME))
        except BlockingIOError:
            return
        except OSError:
            self.watched.remove(device)

    def keep(self, due: float, sink: int, frame: bytes) -> None:
        if len(frame) > self.room[sink]:
            self.dropped += 1
            return
        self.room[sink] -= len(frame)
        self.queue.append((due, sink, frame))

    def give(self) -> None:
        """Write what is due."""
        now = self.clock.now()
        while self.queue and self.queue[0][0] <= now:
            due, sink, frame = self.queue.popleft()
            self.room[sink] += len(frame)
            self.note(self.clock.now() - due)
            with suppress(OSError):  # a device that is down, or gone, takes nothing
                os.write(sink, frame)

    def note(self, lateness: float) -> None:
        self.frames += 1
        self.late += lateness
        self.latest = max(self.latest, lateness)

    def answer(self) -> bool:
        """Take over the devices that a message brings, and send the tally; False when nobody is there any more."""
        message, devices, _, _ = socket.recv_fds(self.control, 4096, 2)
        if not message:
            return False
        if devices:
            near, far = devices
            self.join(near, far, int(message))
        tally = Tally(self.frames, self.dropped, self.late / max(1, self.frames), self.latest)
        self.control.send(json.dumps(tally).encode())
        return True


def _be_punctual() -> None:
    """Go before what computes, where that is permitted; elsewhere at least without the usual slack of timers."""
    gc.disable()  # there are no cycles, and looking for them in a long queue takes milliseconds
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        Path("/proc/self/timerslack_ns").write_text("1")


if __name__ == "__main__":
    _be_punctual()
    with suppress(ConnectionError):  # whoever asked last has died before the answer
        Relay(socket.socket(fileno=sys.stdin.fileno()), float(sys.argv[1]), Clock()).run()
