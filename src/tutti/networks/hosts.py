"""Every worker on a host of its own: a network namespace with one link to a common switch, and a share of the CPU.

    rate      of every link, in either direction (tc tbf at both ends of a veth pair; the switch is a bridge)
    cpu       cores' worth of time per host (cgroup), so that hosts are equal whatever runs beside them
    latency   from host to host, one way (netem where the kernel has it, else a delay line in user space)
    slow-rate, slow-cpu   the last host's own: a bottleneck

Opened, every link and quota is measured; a link that is more than 5 % off is told of, one that is more than half off is
refused. A rate counts bytes as the link does, headers included; TCP's payload is about 4 % less.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from tutti.errors import UserError
from tutti.machine import count_cores
from tutti.networks.base import Door, Fabric, Network
from tutti.spec import Range, Rate, Seconds

Cores = Annotated[float, Range(least=0.01, most=1024)]
_MOST_HOSTS = 200  # addresses of one subnet


@dataclass(frozen=True)
class HostDoor(Door):
    namespace: str = ""
    quota: str = ""

    def enter(self) -> None:
        from tutti.hosts.namespaces import enter
        from tutti.hosts.quota import join

        enter(self.namespace)
        if self.quota:
            join(Path(self.quota))


@dataclass
class Hosts(Network):
    rate: Rate | None = None
    cpu: Cores | None = None
    latency: Annotated[Seconds, Range(most=10)] = 0.0
    slow_rate: Rate | None = None
    slow_cpu: Cores | None = None

    hosts: ClassVar[bool] = True

    def enter(self) -> None:
        from tutti.hosts.namespaces import enter_own

        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns that hosts have no names
        enter_own()

    def check(self, workers: int) -> None:
        if workers > _MOST_HOSTS:
            raise UserError(f"'{self}' has room for {_MOST_HOSTS} hosts, not {workers}")
        quotas = [self.cpu_of(host, workers) or 0.0 for host in range(workers)]
        cores = count_cores()
        if sum(quotas) > cores + 1e-9:
            fitting = math.floor(100 * cores / workers) / 100
            raise UserError(
                f"{workers} hosts with {sum(quotas):g} cores between them do not fit on {cores} cores; "
                f"ask for cpu={fitting:g} at most"
            )

    def rate_of(self, host: int, hosts: int) -> float | None:
        return self.slow_rate if self.slow_rate is not None and host == hosts - 1 else self.rate

    def cpu_of(self, host: int, hosts: int) -> float | None:
        return self.slow_cpu if self.slow_cpu is not None and host == hosts - 1 else self.cpu

    def outline(self, workers: int) -> Fabric:
        threads = math.ceil(self.cpu) if self.cpu is not None else 0
        return Fabric((HostDoor("eth0", True),) * workers, threads=threads)

    @contextmanager
    def open(self, workers: int) -> Iterator[Fabric]:
        from tutti.hosts.links import Wiring
        from tutti.hosts.measure import measure
        from tutti.hosts.quota import Quota

        self.check(workers)
        with _ending_in_order(), ExitStack() as stack:
            wiring = stack.enter_context(Wiring([self.rate_of(i, workers) for i in range(workers)], self.latency))
            quotas: list[str] = []
            for host in range(workers):
                cpus = self.cpu_of(host, workers)
                quota = Quota.make(f"{wiring.label}-host{host}", cpus) if cpus is not None else None
                if quota is not None:
                    stack.callback(quota.close)
                quotas.append(str(quota.folder) if quota is not None else "")
            doors = tuple(
                HostDoor("eth0", True, host.path, quota) for host, quota in zip(wiring.hosts, quotas, strict=True)
            )
            fabric = Fabric(doors, wiring.address, self.outline(workers).threads)
            measured = measure(wiring, [self.cpu_of(i, workers) for i in range(workers)], quotas)
            yield replace(fabric, description={"asked": str(self), **measured})


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Whoever is told to end takes the hosts down first, as at Ctrl-C."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)
