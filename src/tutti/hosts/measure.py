"""What the links and quotas of some hosts are really like, measured before anything relies on them.

A link is filled in both directions at once between its host and the switch, and what passed is read off the link's own
queue (frames with all their headers, as a rate counts them) beside the payload that arrived. A quota is measured by
computing in all hosts at once.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from tutti.clock import Clock
from tutti.errors import UserError
from tutti.hosts.links import Wiring
from tutti.hosts.namespaces import Namespace

TOLERANCE = 0.05  # how far off a rate may be without a word
_AT_ALL = 0.5  # how far off it may be at all
_LOOKS = 12  # at a link, one behind the other; the first good one is taken
_CONNECTIONS = 3  # one behind the other, until one is good
_SECONDS, _BITS = 0.25, 5e5  # that a look takes at least: some forty frames make a rate
_WARM_UP = 0.12  # until TCP has found the rate; and some round trips more
_PIECE = 256 * 1024
_PINGS, _LEAST_PINGS, _PING_SECONDS = 30, 3, 1.0  # as many as fit into the time, but not too few
_TRIES = 5
_WAKING = 1.5e-3  # seconds that four processes may take to wake up on the way of one byte
_CPU_SECONDS = 0.5
# Runs in every host's quota at once: works for so long and prints the share of a core it got.
_BURN = (
    "import os,sys,time\n"
    "if sys.argv[1]: open(sys.argv[1]+'/cgroup.procs','w').write(str(os.getpid()))\n"
    "end=time.perf_counter()+float(sys.argv[2])/4\n"
    "while time.perf_counter()<end: pass\n"
    "begun,used=time.perf_counter(),time.process_time()\n"
    "while time.perf_counter()<begun+float(sys.argv[2]): pass\n"
    "print((time.process_time()-used)/(time.perf_counter()-begun))\n"
)


def measure(wiring: Wiring, cpus: list[float | None], quotas: list[str]) -> dict[str, Any]:
    """For the record: one entry per host, asked and measured side by side, rates in bits per second."""
    rows: list[dict[str, Any]] = []
    for host, rate in enumerate(wiring.rates):
        rows.append({"host": host, "asked": rate, **_measure_link(wiring, host)})
    for row, asked, share in zip(rows, cpus, _shares(quotas), strict=True):
        row.update({"cpu_asked": asked, "cpu": share if asked is not None else None})
    congestion = wiring.hosts[0].run(lambda: _read("/proc/sys/net/ipv4/tcp_congestion_control"))
    return {"measured": rows, "system_congestion_control": congestion}


def _measure_link(wiring: Wiring, host: int) -> dict[str, Any]:
    rate = wiring.rates[host]
    latency = {"latency": _measure_latency(wiring, host)}
    return latency if rate is None else {**_measure_rate(wiring, host, rate), **latency}


def _measure_rate(wiring: Wiring, host: int, rate: float) -> dict[str, float]:
    """As near to what was asked as it came in a few looks; a connection that never found the rate is made anew. What a
    busy machine carries instead is in the record, and readers are told; only much less than was asked is refused."""
    looks: list[dict[str, float]] = []
    for _ in range(_CONNECTIONS):
        looks += _look(wiring, host, rate)
        if _good(looks[-1], rate):
            return looks[-1]
    best = min(looks, key=lambda look: _off(look, rate))
    if _off(best, rate) <= _AT_ALL:
        return best
    worst = max(best["out"], best["in"], key=lambda value: abs(value / rate - 1))
    raise UserError(
        f"the link of host {host} carries {worst / 1e6:,.1f} Mbit/s where {rate / 1e6:,.1f} were asked for; "
        "this machine is too busy or too slow for that, so ask for less"
    )


def _look(wiring: Wiring, host: int, rate: float) -> list[dict[str, float]]:
    """Looks at one connection in each direction, up to the first good one: TCP may still be starting, or the processor
    be elsewhere."""
    clock = Clock()
    looks: list[dict[str, float]] = []
    with _Stream(wiring, host, outward=True) as out, _Stream(wiring, host, outward=False) as into:
        clock.sleep(_WARM_UP + 20 * wiring.latency)
        before = _sample(wiring, host, out, into, clock)
        while len(looks) < _LOOKS and not (looks and _good(looks[-1], rate)):
            clock.sleep(max(_SECONDS, _BITS / rate))
            after = _sample(wiring, host, out, into, clock)
            looks.append(_between(before, after))
            before = after
    return looks


def _good(look: dict[str, float], rate: float) -> bool:
    return _off(look, rate) <= TOLERANCE and _in_step(look, rate)


def _measure_latency(wiring: Wiring, host: int) -> float:
    """The same for the latency, which is at least what was asked for unless frames overtake it."""
    asked = wiring.latency
    best = _latency(wiring, host)
    for _ in range(_TRIES):
        if asked == 0 or abs(best - asked) <= TOLERANCE * asked + _WAKING:
            return best
        best = min(best, _latency(wiring, host), key=lambda seconds: abs(seconds - asked))
    raise UserError(
        f"the latency of host {host} is {1e3 * best:.3g} ms where {1e3 * asked:.3g} ms were asked for; "
        "this machine is too busy or too slow for that"
    )


def _between(before: dict[str, tuple[int, float]], after: dict[str, tuple[int, float]]) -> dict[str, float]:
    """Bits per second from one sample to the next."""
    return {key: 8 * (after[key][0] - before[key][0]) / (after[key][1] - before[key][1]) for key in before}


def _off(look: dict[str, float], rate: float) -> float:
    """How far the worse direction is from the rate, as a share of it."""
    return max(abs(look["out"] / rate - 1), abs(look["in"] / rate - 1))


def _in_step(look: dict[str, float], rate: float) -> bool:
    """Whether the payload that arrived is of the frames that passed, not of earlier ones that had to wait."""
    return all(0.8 * rate < look[payload] < rate for payload in ("payload_out", "payload_in"))


def _sample(wiring: Wiring, host: int, out: _Stream, into: _Stream, clock: Clock) -> dict[str, tuple[int, float]]:
    """What has passed so far and when: out of the host and into it, as the link counts and as payload."""
    sample: dict[str, tuple[int, float]] = {}
    sample["out"] = _count(wiring.hosts[host], "eth0"), clock.now()
    sample["payload_out"] = out.received, clock.now()
    sample["in"] = _count(wiring.switch, wiring.port(host)), clock.now()
    sample["payload_in"] = into.received, clock.now()
    return sample


def _count(namespace: Namespace, device: str) -> int:
    """Bytes that have left the queue of a device."""
    queues = json.loads(namespace.ask_tc("-s", "-j", "qdisc", "show", "dev", device))
    return int(next(queue["bytes"] for queue in queues if queue["kind"] == "tbf"))


class _Stream:
    """TCP as fast as it goes between a host and the switch, for as long as the context lasts."""

    def __init__(self, wiring: Wiring, host: int, outward: bool) -> None:
        near, far = _connect(wiring, host)
        self._sender, self._receiver = (far, near) if outward else (near, far)
        self.received = 0
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self._send, self._receive)]

    def __enter__(self) -> _Stream:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._sender, self._receiver):
            end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (self._sender, self._receiver):
            end.close()

    def _send(self) -> None:
        piece = bytes(_PIECE)
        try:
            while True:
                self._sender.sendall(piece)
        except OSError:
            return  # the end has come

    def _receive(self) -> None:
        landing = bytearray(_PIECE)
        try:
            while count := self._receiver.recv_into(landing):
                self.received += count
        except OSError:
            return


def _latency(wiring: Wiring, host: int) -> float:
    """Seconds for one byte to the switch and back, which is also the way from one host to another."""
    clock = Clock()
    near, far = _connect(wiring, host)
    with near, far:
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        echo = threading.Thread(target=_echo, args=(far,), daemon=True)
        echo.start()
        times: list[float] = []
        enough = clock.now() + _PING_SECONDS
        while len(times) < _LEAST_PINGS or (len(times) < _PINGS and clock.now() < enough):
            begun = clock.now()
            near.sendall(b".")
            near.recv(1)
            times.append(clock.now() - begun)
        near.shutdown(socket.SHUT_RDWR)
        echo.join()
    return statistics.median(times)


def _echo(end: socket.socket) -> None:
    with suppress(OSError):  # closed beneath it: an interrupted measurement
        while byte := end.recv(1):
            end.sendall(byte)


def _connect(wiring: Wiring, host: int) -> tuple[socket.socket, socket.socket]:
    """(the switch's end, the host's end)."""
    with socket.create_server((wiring.address, 0)) as server:
        place = server.getsockname()
        far = wiring.hosts[host].run(lambda: socket.create_connection(place, timeout=10))
        near, _ = server.accept()
    for end in (near, far):
        end.settimeout(None)
    return near, far


def _shares(quotas: list[str]) -> list[float]:
    """The share of a core that computing got in every host, all of them at once."""
    if not any(quotas):
        return [0.0] * len(quotas)
    command = [sys.executable, "-S", "-c", _BURN]
    pipe = subprocess.PIPE
    burning = [
        subprocess.Popen([*command, quota, str(_CPU_SECONDS)], stdout=pipe, stderr=pipe, text=True) for quota in quotas
    ]
    return [_share(quota, *process.communicate()) for quota, process in zip(quotas, burning, strict=True)]


def _share(quota: str, printed: str, complaint: str) -> float:
    if not printed:
        last = complaint.strip().rpartition("\n")[2]
        raise UserError(f"nothing can be run under the quota {quota} ({last}); run as root, or leave cpu out")
    return float(printed)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()
