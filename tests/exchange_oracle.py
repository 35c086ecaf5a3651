"""How exchanges between neighbours are run in tests, and what they are held against.

The own test of each has `history(exchange, start, bodies)`: in numpy, from the paper's matrix form, what every worker
ends each step with (step, worker, number) where it came in with `bodies`; `start` is what all had in common before. Of
those that go on without lost messages it also takes `lost(step, part, sender, receiver)`, which says what does not
arrive. Topologies are known by their peers.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import numpy as np
import torch
from decentralised_oracle import Array
from workers import on_threads

from tutti.comm.base import Comm, Message
from tutti.comm.metered import Meter, Metered
from tutti.exchanges.base import Exchange
from tutti.layout import Layout
from tutti.spec import parse
from tutti.topologies.base import Topology

Lost = Callable[[int, int, int, int], bool]


def nothing(*_: int) -> bool:
    """No message is lost."""
    return False


def own_test(exchange: Exchange) -> ModuleType:
    return importlib.import_module(f"exchanges.test_{exchange.name.replace('-', '_')}")


def by_parts(topology: Topology, start: Array, bodies: Array, of_part: Callable[[int, Array, Array], Array]) -> Array:
    """Each part of the topology carries a piece of its own; where it does not divide, the first ones are longer."""
    starts, pieces = (np.array_split(array, topology.parts, axis=-1) for array in (start, bodies))
    return np.concatenate([of_part(*each) for each in zip(range(topology.parts), starts, pieces, strict=True)], axis=-1)


def layout_of(*lengths: int, dtype: torch.dtype = torch.float64) -> Layout:
    return Layout.of([(str(n), torch.zeros(length, dtype=dtype)) for n, length in enumerate(lengths)])


def draw(size: int, layout: Layout, steps: int) -> tuple[Array, Array]:
    """A common start, and what each worker comes in with at every step: numbers that the layout's type can hold."""
    drawn = np.random.default_rng(size).normal(size=(steps * size + 1, layout.numel))
    held = torch.from_numpy(drawn).to(layout.dtype).double().numpy()
    return held[0], held[1:].reshape(steps, size, layout.numel)


def tell_all(
    spec: str | Exchange,
    layout: Layout,
    start: Array,
    bodies: Array,
    wire: Callable[[Comm], Comm] = lambda comm: comm,
    strict: bool = False,
) -> Array:
    """The same from the package, on threads; spare elements stay as they are."""

    def work(comm: Comm) -> list[Array]:
        exchange = (parse(spec, Exchange) if isinstance(spec, str) else spec).setup(wire(comm), layout, "weights/0")
        exchange.begin(torch.from_numpy(start).to(layout.dtype))
        return [agree(exchange, body[comm.rank], step) for step, body in enumerate(bodies)]

    return np.stack(on_threads(bodies.shape[1], work, strict=strict), axis=1)


def repeat(exchange: Exchange, first: Array, steps: int) -> Array:
    """What each worker has after every step, where nobody changes anything in between."""
    layout = layout_of(first.shape[1])

    def work(comm: Comm) -> list[Array]:
        bound, bodies = exchange.setup(comm, layout, "weights/0"), [first[comm.rank]]
        for step in range(steps):
            bodies.append(agree(bound, bodies[-1], step))
        return bodies[1:]

    return np.stack(on_threads(len(first), work), axis=1)


def agree(exchange: Exchange, body: Array, step: int) -> Array:
    """One worker's part of one step; its number of samples changes nothing."""
    layout = exchange.layout
    spare = torch.arange(1.0, layout.total - layout.numel + 1, dtype=layout.dtype)
    buffer = torch.cat([torch.from_numpy(body).to(layout.dtype), spare])
    samples = 1.0 + exchange.comm.rank
    assert exchange.scale(samples) == 1
    exchange.agree(buffer, step, samples)
    assert buffer[layout.numel :].equal(spare)
    return buffer[: layout.numel].double().numpy()


class Losing(Metered):
    """A wire that loses the messages it is told to; an exchange is completed once a step."""

    def __init__(self, inner: Comm, topology: Topology, lost: Lost) -> None:
        super().__init__(inner, Meter())
        self.topology, self.lost, self.step = topology, lost, 0

    def start_exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> Callable[[], list[bool]]:
        return partial(self._lose, sends, recvs, tag)

    def _lose(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> list[bool]:
        landings = [(peer, torch.full_like(tensor, torch.nan)) for peer, tensor in recvs]
        self.inner.exchange(sends, landings, tag)
        parts = find_parts(self.topology, [peer for peer, _ in recvs], self.rank, self.size)
        arrived = [
            not self.lost(self.step, part, peer, self.rank) for (peer, _), part in zip(recvs, parts, strict=True)
        ]
        for here, (_, tensor), (_, landing) in zip(arrived, recvs, landings, strict=True):
            if here:
                tensor.copy_(landing)
        self.step += 1
        return arrived


def find_parts(topology: Topology, senders: list[int], rank: int, size: int) -> list[int]:
    """The part that each message is of: the first one from a sender is of the first part that links the two."""
    seen: Counter[int] = Counter()
    parts = []
    for sender in senders:
        linked = [part for part in range(topology.parts) if rank in topology.peers(sender, size, part=part)]
        parts.append(linked[seen[sender]] if topology.parts > 1 else 0)
        seen[sender] += 1
    return parts


def often(step: int, part: int, sender: int, receiver: int) -> bool:
    """A third of all messages, by chance."""
    return bool(np.random.default_rng((step, part, sender, receiver)).random() < 1 / 3)
