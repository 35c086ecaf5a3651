"""Hosts, a switch, and a shaped link between each of them and the switch.

    host i: eth0 10.116.k.(i+1)  <- tbf ->  switch: port i, all ports on one bridge with the address 10.116.k.254

The switch is the namespace this process has made its own. Both ends of a link are shaped where they send, so both
directions have the rate and neither takes from the other.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tutti.errors import UserError
from tutti.hosts.namespaces import Namespace

if TYPE_CHECKING:
    from tutti.hosts.delay import DelayLine

_wirings = itertools.count()  # names and addresses are unique within this process, whose namespace nobody shares
_LEAST_BURST, _BURST_SECONDS = 32 * 1024, 1e-3  # bytes that may pass at once: a millisecond's, or one large frame's
_LEAST_QUEUE, _QUEUE_SECONDS = 256 * 1024, 20e-3  # bytes that wait before frames are dropped: a switch's buffer


class Wiring:
    """A context manager: so many hosts with these rates (bits per second; None is unlimited) and this latency."""

    def __init__(self, rates: list[float | None], latency: float = 0.0) -> None:
        self.rates, self.latency = rates, latency
        self._number = next(_wirings)
        self.label = f"net{self._number}"
        self.address = self._address(254)
        self.hosts: list[Namespace] = []
        self._lines: list[DelayLine] = []

    def address_of(self, host: int) -> str:
        return self._address(host + 1)

    def port(self, host: int) -> str:
        """The name of the switch's end of a link."""
        return f"{self.label}p{host}"

    def __enter__(self) -> Self:
        self.switch = Namespace.here()
        try:
            self._make_bridge()
            for index, rate in enumerate(self.rates):
                self.hosts.append(Namespace.new())
                self._join(index, rate)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines:
            line.close()
        for host in self.hosts:
            host.close()  # its end of the link goes with it, and with that the port
        with suppress(UserError):  # it was never made
            self.switch.ip(f"link delete {self.label}")
        self.switch.close()

    def _address(self, last: int) -> str:
        return f"10.116.{self._number % 250}.{last}"

    def _make_bridge(self) -> None:
        self.switch.ip(
            "link set lo up",
            f"link add {self.label} type bridge forward_delay 0 mcast_snooping 0",
            f"link set {self.label} addrgenmode none",
            f"address add {self.address}/24 dev {self.label}",
            f"link set {self.label} up",
        )

    def _join(self, index: int, rate: float | None) -> None:
        host, port = self.hosts[index], self.port(index)
        netem = self.latency > 0 and _has_netem()
        if self.latency > 0 and not netem:
            from tutti.hosts.delay import DelayLine

            self._lines.append(DelayLine(host, "eth0", self.switch, port, self.latency / 2))
        else:
            self.switch.ip(f"link add {port} type veth peer name eth0 netns {host.path}")
        self.switch.ip(
            f"link set {port} addrgenmode none", f"link set {port} master {self.label}", f"link set {port} up"
        )
        host.ip(
            "link set lo up",
            "link set eth0 addrgenmode none",
            f"address add {self.address_of(index)}/24 dev eth0",
            "link set eth0 up",
        )
        for namespace, device in ((host, "eth0"), (self.switch, port)):
            commands = _shape(device, rate, self.latency / 2 if netem else 0.0)
            if commands:
                namespace.tc(*commands)


def _shape(device: str, rate: float | None, delay: float) -> list[str]:
    """What tc is told: hold frames back for so long, then let them pass at the rate."""
    commands = []
    above = "root"
    if delay > 0:
        commands.append(f"qdisc add dev {device} root handle 1: netem delay {delay * 1e6:.0f}us limit 100000")
        above = "parent 1:1"
    if rate is not None:
        burst = max(_LEAST_BURST, round(rate / 8 * _BURST_SECONDS))
        queue = max(_LEAST_QUEUE, round(rate / 8 * _QUEUE_SECONDS))
        commands.append(
            f"qdisc add dev {device} {above} handle 10: tbf rate {rate:.0f}bit burst {burst}b limit {queue}b"
        )
    return commands


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
