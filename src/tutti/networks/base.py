"""Networks: what joins the workers of one machine.

A network is opened once and serves run after run: `open` gives a fabric, and a worker goes through its `door` before it
does anything else. What was asked and what was measured go into the record.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from tutti.spec import Member


@dataclass(frozen=True)
class Door:
    """How a worker gets to its place; plain data, since it travels to the worker's process."""

    interface: str = "lo"
    own_interface: bool = False  # nobody else's traffic passes it: its counter is the run's

    def enter(self) -> None:
        """Called by the worker, first of all."""


@dataclass(frozen=True)
class Fabric:
    """A network that is there: one door per worker, and where the workers find whoever launches them."""

    doors: tuple[Door, ...] = ()
    address: str = "127.0.0.1"
    threads: int = 0  # that a worker computes with; 0 is its share of the machine's cores
    description: dict[str, Any] | None = None  # for the record: `asked`, and `measured` per host

    def door(self, rank: int) -> Door:
        return self.doors[rank] if self.doors else Door()


@dataclass
class Network(Member):
    axis: ClassVar[str] = "networks"
    noun: ClassVar[str] = "network"
    hosts: ClassVar[bool] = False  # every worker gets a host of its own

    def enter(self) -> None:
        """Move this process to where the network can be made; before it has a second thread."""

    def outline(self, workers: int) -> Fabric:
        """What `open` will give, as far as it can be known before."""
        return Fabric()

    @abstractmethod
    def open(self, workers: int) -> AbstractContextManager[Fabric]:
        """Set it up, measure it, and take it down at the end."""
