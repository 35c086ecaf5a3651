"""Hierarchical: a sum inside every host first, then between the hosts, then back to everybody inside.

    inside    reduce to the host's first worker
    between   all-reduce among the first workers of all hosts
    inside    broadcast from the host's first worker

Links inside a host are fast and many, links between hosts slow and few: only one worker's bytes leave each host.
`hosts=2x3x1` are hosts of two, three and one worker, in the order of the workers; without it the workers find out who
sits with whom. Either level takes any route; the one inside needs a reduce and a broadcast. Costs are the sum of the
three; where the hosts are not given, those of a single one, here with the ring:

    rounds 2(n-1), bytes on the busiest link min(2,n-1) * S, total 2(n-1) * S

With m hosts of k workers on rings it is 2(k-1) + 2(m-1) rounds, and 2(m-1)/m * S leave and enter every host.

Paper: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation performance"
(2000).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

from tutti.collectives.base import Collective, Combine, Cost, Load, add_up
from tutti.comm.base import Comm
from tutti.comm.subset import Subset
from tutti.errors import UserError
from tutti.machine import name_host
from tutti.spec import Sizes, member, names, part

Groups = list[list[int]]  # the workers of every host, in rising order

_NEEDED = ("reduce", "broadcast")


class Levels(NamedTuple):
    """The workers of one worker's host, and the first ones of all hosts if it is one of them."""

    inside: Comm
    between: Comm | None


@dataclass
class Hierarchical(Collective):
    inside: Collective = part(Collective, "ring")
    between: Collective = part(Collective, "ring")
    hosts: Sizes | None = None

    _levels: dict[Comm, Levels] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not set(_NEEDED) <= set(self.inside.operations):
            able = [name for name in names(self.axis) if set(_NEEDED) <= set(member(Collective, name).operations)]
            raise ValueError(f"inside of 'hierarchical' needs a reduce and a broadcast: use {', '.join(able)}")

    def check(self, workers: int) -> None:
        """Where the hosts are found, only then are their sizes known."""
        groups = self._groups(workers) if self.hosts else []
        for group in groups:
            self.inside.check(len(group))
        if groups:
            self.between.check(len(groups))

    def prepare(self, comm: Comm) -> None:
        inside, between = self._find_levels(comm)
        self.inside.prepare(inside)
        if between is not None:
            self.between.prepare(between)

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        inside, between = self._find_levels(comm)
        self.inside.reduce(inside, buffer, tag)
        if between is not None:
            self.between.run(between, buffer, tag)
        self.inside.broadcast(inside, buffer, tag)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if operation != "all-reduce":
            raise self.lacks(operation)
        groups = self._groups(size)
        up, down = ([self.inside.cost(len(group), nbytes, phase) for group in groups] for phase in _NEEDED)
        between = self.between.cost(len(groups), nbytes)
        return Cost(
            rounds=max(cost.rounds for cost in up) + between.rounds + max(cost.rounds for cost in down),
            busiest=max(max(load) for load in self.loads(size)) * nbytes,
            total=sum(cost.total for cost in (*up, between, *down)),
            path=max(cost.path for cost in up) + between.path + max(cost.path for cost in down),
        )

    def loads(self, size: int, operation: str = "all-reduce") -> list[Load]:
        groups = self._groups(size)
        firsts = dict(zip([group[0] for group in groups], self.between.loads(len(groups)), strict=True))
        loads = {}
        for group in groups:
            phases = (self.inside.loads(len(group), phase) for phase in _NEEDED)
            for rank, up, down in zip(group, *phases, strict=True):
                across = firsts.get(rank, Load(0.0, 0.0))
                loads[rank] = Load(up.sent + across.sent + down.sent, up.received + across.received + down.received)
        return [loads[rank] for rank in range(size)]

    def _find_levels(self, comm: Comm) -> Levels:
        levels = self._levels.get(comm)
        if levels is None:
            groups = self._groups(comm.size) if self.hosts else find_hosts(comm)
            mine = next(group for group in groups if comm.rank in group)
            firsts = [group[0] for group in groups]
            between = Subset(comm, firsts) if comm.rank in firsts else None
            levels = self._levels[comm] = Levels(Subset(comm, mine), between)
        return levels

    def _groups(self, size: int) -> Groups:
        """As given, or all on one host."""
        hosts = self.hosts or (size,)
        if sum(hosts) != size:
            said = "x".join(map(str, hosts))
            raise UserError(f"hosts={said} of 'hierarchical' is for {sum(hosts)} workers, and there are {size}")
        return [list(range(end - count, end)) for count, end in zip(hosts, accumulate(hosts), strict=True)]


def find_hosts(comm: Comm) -> Groups:
    """Who sits with whom: every worker tells the others where it is (all call this together)."""
    groups: dict[bytes, list[int]] = {}
    for rank, host in enumerate(comm.gather_bytes(name_host().encode(), "control/hosts")):
        groups.setdefault(host, []).append(rank)
    return list(groups.values())
