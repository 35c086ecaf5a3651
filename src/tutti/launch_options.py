"""What runs on the workers, how many they are and where: what `launch` and whoever starts them have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tutti.comm.base import Comm
from tutti.comm.rendezvous import WireOptions, find_place
from tutti.errors import UserError
from tutti.machine import count_cores
from tutti.networks.base import Fabric

Report = Callable[[dict[str, Any]], None]  # how worker 0 tells the outside what is going on
Result = TypeVar("Result", covariant=True)


class WorkerFunction(Protocol[Result]):
    """What runs on every worker; processes need it importable and its arguments picklable."""

    def __call__(self, comm: Comm, report: Report, *args: Any) -> Result: ...


@dataclass(frozen=True)
class LaunchOptions:
    """Where and how many: `workers` over all nodes; the master is needed only when a run spans several nodes."""

    workers: int = 4
    engine: str = "processes"
    wire: WireOptions = field(default_factory=WireOptions)
    nodes: int = 1
    node_rank: int = 0
    master: str = ""
    preload: tuple[str, ...] = ()  # modules that the workers shall find imported
    threads: int = 0  # that a worker computes with; 0 is its share of this machine's cores
    fabric: Fabric = field(default_factory=Fabric)  # what joins the workers of this machine

    def threads_each(self) -> int:
        return self.threads or self.fabric.threads or max(1, count_cores() // (self.workers // self.nodes))

    @property
    def wire_used(self) -> str:
        """What a record calls the wire: threads have their own; workers on hosts of their own share no memory, nor do
        encrypted ones."""
        if self.engine == "threads":
            return "threads"
        apart = self.fabric.doors or self.wire.tls is not None
        return "tcp" if self.wire.wire == "shared" and apart else self.wire.wire

    def check(self) -> None:
        if self.workers < 1:
            raise UserError(f"--workers must be at least 1, not {self.workers}")
        if self.workers % self.nodes:
            raise UserError(f"{self.workers} workers do not divide over {self.nodes} nodes")
        if not 0 <= self.node_rank < self.nodes:
            raise UserError(f"--node-rank must be below --nodes ({self.nodes}), not {self.node_rank}")
        if self.nodes > 1 and ":" not in self.master:
            raise UserError("a run over several nodes needs --master HOST:PORT, the same on every node")
        if self.nodes > 1 and self.engine == "threads":
            raise UserError("threads are workers of one process; a run over several nodes needs --engine processes")

    def check_hosts(self, asked: str) -> None:
        """Whether these workers can be put on the hosts of a network."""
        if self.engine == "threads":
            raise UserError(f"--network {asked} needs workers that are processes; leave --engine threads out")
        if self.nodes > 1 or find_place() is not None:
            raise UserError(
                f"--network {asked} makes its own hosts on this machine, so tutti starts the workers itself"
            )
        if self.wire.interface:
            raise UserError(f"--network {asked} gives every worker an interface of its own; leave --interface out")


def say_nothing(event: dict[str, Any]) -> None:
    """The report of every worker but the first."""
