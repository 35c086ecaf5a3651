"""Hosts, a switch, and a shaped link between each of them and the switch.

    host i: eth0 10.116.k.(i+1)  <- tbf ->  switch: port i, all ports on one bridge with the address 10.116.k.254

The switch is the namespace this process has made its own. Both ends of a link are shaped where they send, so both
directions have the rate and neither takes from the other.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tutti.errors import UserError
from tutti.hosts.delay import DelayLine, largest_frame
from tutti.hosts.namespaces import Namespace

_wirings = itertools.count()  # names and addresses are unique within this process, whose namespace nobody shares
_LEAST_BURST, _BURST_SECONDS = 32 * 1024, 1e-3  # bytes that may pass at once: a millisecond's, or one large frame's
_LONG_BURST = 72_800  # bytes, where nothing is limited
_WINDOWS = "4096 131072 67108864"  # bytes: the least, to start with, the most
_QUEUE = 256 * 1024  # bytes that wait before frames are dropped: a switch's buffer
_SHORTEST_QUEUE, _LONGEST_QUEUE = 20e-3, 0.2  # seconds in it, whatever the rate


class Wiring:
    """A context manager: so many hosts with these rates (bits per second; None is unlimited) and this latency."""

    def __init__(self, rates: list[float | None], latency: float = 0.0) -> None:
        self.rates, self.latency = rates, latency
        self._number = next(_wirings)
        self.label = f"net{self._number}"
        self.address = self._address(254)
        self.hosts: list[Namespace] = []
        self._line: DelayLine | None = None  # where the kernel cannot hold frames back itself

    def address_of(self, host: int) -> str:
        return self._address(host + 1)

    def port(self, host: int) -> str:
        """The name of the switch's end of a link."""
        return f"{self.label}p{host}"

    def __enter__(self) -> Self:
        self.switch = Namespace.here()
        try:
            self._make_bridge()
            netem = self.latency > 0 and _has_netem()
            if self.latency > 0 and not netem:
                self._delay()
            for index, rate in enumerate(self.rates):
                self.hosts.append(Namespace.new())
                self._join(index, rate, netem)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.close()
        for host in self.hosts:
            host.close()  # its end of the link goes with it, and with that the port
        with suppress(UserError):  # it was never made
            self.switch.ip(f"link delete {self.label}")
        self.switch.close()

    def _address(self, last: int) -> str:
        return f"10.116.{self._number % 250}.{last}"

    def _make_bridge(self) -> None:
        self.switch.ip(
            f"link add {self.label} type bridge forward_delay 0 mcast_snooping 0",
            *_keep_silent(self.label),
            f"address add {self.address}/24 dev {self.label}",
            f"link set {self.label} up",
        )

    def _delay(self) -> None:
        """Frames are made no larger than any queue on their way lets pass whole: few large ones are easily carried."""
        self._line = DelayLine(self.latency / 2)
        self.switch.ip(f"link set {self.label} gso_max_size {largest_frame(self._least_burst())}")
        self.switch.run(_allow_long_windows)

    def _least_burst(self) -> int:
        return min((_burst(rate) for rate in self.rates if rate is not None), default=_LONG_BURST)

    def _join(self, index: int, rate: float | None, netem: bool) -> None:
        host, port = self.hosts[index], self.port(index)
        if self._line is not None:
            self._line.join((host, "eth0"), (self.switch, port), rate, self._least_burst())
            host.run(_allow_long_windows)
        else:
            self.switch.ip(f"link add {port} type veth peer name eth0 netns {host.path}")
        self.switch.ip(*_keep_silent(port), f"link set {port} master {self.label}", f"link set {port} up")
        host.ip(
            "link set lo up",
            *_keep_silent("eth0"),
            f"address add {self.address_of(index)}/24 dev eth0",
            "link set eth0 up",
        )
        for namespace, device in ((host, "eth0"), (self.switch, port)):
            commands = _shape(device, rate, self.latency / 2 if netem else 0.0)
            if commands:
                namespace.tc(*commands)


def _keep_silent(device: str) -> list[str]:
    """No IPv6 address of its own, whose announcements would be counted; nothing to do where the kernel has no IPv6."""
    return [f"link set {device} addrgenmode none"] if Path("/proc/sys/net/ipv6").exists() else []


def _shape(device: str, rate: float | None, delay: float) -> list[str]:
    """What tc is told: hold frames back for so long, then let them pass at the rate."""
    commands = []
    above = "root"
    if delay > 0:
        commands.append(f"qdisc add dev {device} root handle 1: netem delay {delay * 1e6:.0f}us limit 100000")
        above = "parent 1:1"
    if rate is not None:
        queue = max(_LEAST_BURST, round(min(max(_QUEUE, rate / 8 * _SHORTEST_QUEUE), rate / 8 * _LONGEST_QUEUE)))
        commands.append(
            f"qdisc add dev {device} {above} handle 10: tbf rate {rate:.0f}bit burst {_burst(rate)}b limit {queue}b"
        )
    return commands


def _burst(rate: float) -> int:
    """Bytes that may pass at once."""
    return max(_LEAST_BURST, round(rate / 8 * _BURST_SECONDS))


def _allow_long_windows() -> None:
    """TCP may have as much under way as a fast link with a long way holds; the usual limit is some megabytes."""
    for name in ("tcp_wmem", "tcp_rmem"):
        with suppress(OSError):  # not ours to change: connections are slower then, and the measurement says so
            Path(f"/proc/sys/net/ipv4/{name}").write_text(_WINDOWS)


def _has_netem() -> bool:
    """Whether the kernel can hold frames back by itself; tried on a namespace that is thrown away."""
    trial = Namespace.new()
    try:
        trial.tc("qdisc add dev lo root netem delay 1ms")
    except UserError:
        return False
    finally:
        trial.close()
    return True
