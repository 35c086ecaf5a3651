"""How one worker's message spreads, round by round: gossip averaging against relaying.

    gossip  s⁺ = W s: everybody averages with its peers, so that the share of the message nears 1/n slowly
    relay   on a tree the message is passed on unweighted: its share is 1/n as soon as it has arrived

Where the topology is no tree, relaying uses the tree of shortest ways from its root (find_parents); where links are
one-way or change, the first way by which the message can come. With several parts a share is the mean over them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tutti.errors import UserError
from tutti.graph import Matrix, Rule, find_delays, find_links, make_mixing
from tutti.topologies.base import Topology, find_parents

NEAR = 0.1  # gossip is through where every share is this near to 1/n, relatively
_MOST_ROUNDS = 10_000


@dataclass(frozen=True)
class Spread:
    """Shares of the message: a row per round, from round 0 when only its sender has it, and a column per worker."""

    spec: str
    workers: int
    source: int
    rule: Rule
    way: str
    gossip: Matrix
    relay: Matrix
    relay_rounds: float  # until everybody has it by relaying; inf for never
    gossip_rounds: float  # until every share is near 1/n by gossip; inf for more than could be tried

    @property
    def rounds(self) -> int:
        return len(self.gossip) - 1


def spread(
    topology: Topology,
    workers: int,
    source: int = 0,
    rule: Rule = "metropolis",
    step: int = 0,
    rounds: int | None = None,
) -> Spread:
    if source >= workers:
        raise UserError(f"there is no worker {source} among {workers}: take one from 0 to {workers - 1}")
    delays = np.stack([_find_delays(topology, workers, source, step, part) for part in range(topology.parts)])
    needed = float(delays.max())
    if rounds is None:
        rounds = 3 + (int(needed) if math.isfinite(needed) else workers)
    arrived = delays[None] <= np.arange(rounds + 1)[:, None, None]
    gossip, gossip_rounds = _gossip(topology, workers, source, rule, step, rounds)
    return Spread(
        spec=str(topology),
        workers=workers,
        source=source,
        rule=rule,
        way=_name_way(topology, workers),
        gossip=gossip,
        relay=arrived.mean(axis=1) / workers,
        relay_rounds=needed,
        gossip_rounds=gossip_rounds,
    )


def as_json(each: Spread) -> dict[str, Any]:
    """For a program; what never comes is null."""
    values = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in vars(each).items()}
    return {key: None if value == math.inf else value for key, value in values.items()}


def describe(each: Spread) -> list[str]:
    """What it shows: a sentence on relaying and one on gossip."""
    fair, done = f"1/{each.workers}", math.isfinite(each.relay_rounds)
    at = min(each.rounds, int(each.relay_rounds)) if done else each.rounds
    relay = f"everybody has exactly {fair} after {_count(each.relay_rounds)}, {each.way}"
    least = _format_share(float(each.gossip[at].min()) * each.workers)
    return [
        f"Relay: {relay if done else 'it never reaches everybody'}.",
        f"Gossip: after {_count(at)} the least share is {least} of {fair}; {_say_near(each)}.",
    ]


def _say_near(each: Spread) -> str:
    within = f"within {100 * NEAR:.0f} % of 1/{each.workers}"
    if math.isfinite(each.gossip_rounds):
        return f"all are {within} after {_count(each.gossip_rounds)}"
    return f"not all are {within} after {_MOST_ROUNDS:,} rounds"


def _format_share(share: float) -> str:
    return f"{100 * share:.3g} %" if share == 0 or share >= 1e-4 else "below 0.01 %"


def _count(rounds: float) -> str:
    return f"{rounds:.0f} round" + ("" if rounds == 1 else "s")


def is_tree(topology: Topology, workers: int) -> bool:
    """Whether there is exactly one way between any two workers, in every part and at all times."""
    if topology.directed or topology.changing:
        return False
    parts = [find_links(topology, workers, part=part) for part in range(topology.parts)]
    connected = all(np.isfinite(find_delays(topology, workers, part=part)).all() for part in range(topology.parts))
    return connected and all(int(links.sum()) == 2 * (workers - 1) for links in parts)


def _name_way(topology: Topology, workers: int) -> str:
    if topology.directed or topology.changing:
        return "relayed by the first way there is"
    if is_tree(topology, workers):
        return "relayed on the tree itself" if topology.parts == 1 else f"relayed on its {topology.parts} trees"
    return f"relayed on the tree of shortest ways from worker {topology.root(workers)}"


def _find_delays(topology: Topology, workers: int, source: int, step: int, part: int) -> Matrix:
    """After how many rounds everybody has the message of `source`."""
    if topology.directed or topology.changing:
        return find_delays(topology, workers, step, part)[:, source]
    parents = find_parents(topology, workers, part)
    peers = {worker: {parent} - {-1} for worker, parent in enumerate(parents)}
    for worker, parent in enumerate(parents):
        peers.get(parent, set()).add(worker)
    delays = {source: 0}
    for worker in (reached := [source]):
        news = peers[worker] - delays.keys()
        delays |= dict.fromkeys(news, delays[worker] + 1)
        reached += news
    return np.array([delays[worker] for worker in range(workers)], dtype=float)


def _gossip(topology: Topology, workers: int, source: int, rule: Rule, step: int, rounds: int) -> tuple[Matrix, float]:
    """The shares of the first rounds, and after how many rounds all of them are near 1/n."""
    shares = np.zeros((topology.parts, workers))
    shares[:, source] = 1
    mixing = _mix(topology, workers, rule, step)
    rows: list[Matrix] = []
    near = math.inf
    for at in range(_MOST_ROUNDS + 1):
        if at <= rounds:
            rows.append(shares.mean(axis=0))
        if math.isinf(near) and bool((np.abs(shares * workers - 1) <= NEAR).all()):
            near = at
        if at >= rounds and math.isfinite(near):
            break
        if topology.changing:
            mixing = _mix(topology, workers, rule, step + at)
        shares = np.einsum("pij,pj->pi", mixing, shares)
    return np.stack(rows), near


def _mix(topology: Topology, workers: int, rule: Rule, step: int) -> Matrix:
    return np.stack([make_mixing(topology, workers, step, part, rule) for part in range(topology.parts)])
