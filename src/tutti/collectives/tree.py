"""Tree: sums go up from the leaves to the root, the result goes down again, both in segments that follow each other.

Any topology that joins all workers will do; its tree is made of the shortest ways to its root. `tree(binary-tree)` and
`tree(chain)` are what they say, `tree(hypercube)` is MPI's binomial tree, and `tree(double-binary-tree)` has two trees
that carry half of the buffer each, so that who passes on in one of them is a leaf of the other.

    up      worker v sends segment k to its parent at tick k + height(v)
    down    a worker at depth d sends segment k to its children at tick k + height(root) + d

At every tick a worker sends and receives all that is due, up and down and in all trees, in one exchange. With k
segments over a tree of height h that is k+2h-1 rounds. For short buffers, of one segment, over the binary tree:

    all-reduce       rounds 2floor(log2(n)), bytes on the busiest link min(3,ceil(n/2)) * S, total 2(n-1) * S
    reduce           up only, to any root; broadcast: down only
    reduce-scatter   a reduce, then every worker hands each child the pieces of those below it
    all-gather       every worker hands its parent the pieces of those below it, then a broadcast

All but all-reduce take the first tree for the whole buffer; for another root the workers are numbered from it.

Paper: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tutti.collectives.base import NOTHING, Collective, Combine, Cost, add_up, bounds, check_segment, count_segments
from tutti.comm.base import Comm, Message
from tutti.spec import Bytes, part
from tutti.topologies.base import Topology, find_parents

# --- the schedule ----------------------------------------------------------------------------------------------------


class Rooted(NamedTuple):
    """A tree and its root; every list has an entry per worker."""

    parents: list[int]  # -1: none
    heights: list[int]  # above the lowest leaf below
    depths: list[int]  # below the root
    children: list[list[int]]
    below: list[list[int]]  # the worker and all whose way to the root leads through it

    @property
    def height(self) -> int:
        return max(self.heights)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Every worker that has a parent, and the parent."""
        return [(worker, parent) for worker, parent in enumerate(self.parents) if parent >= 0]


def grow(parents: Sequence[int], root: int | None = None) -> Rooted:
    """The tree of these parents (-1 for the root); for another root, the same tree with the workers counted from it."""
    size = len(parents)
    shift = 0 if root is None else root - list(parents).index(-1)
    moved = [-1 if (parent := parents[(k - shift) % size]) < 0 else (parent + shift) % size for k in range(size)]
    tree = Rooted(moved, [0] * size, [0] * size, [[] for _ in parents], [[k] for k in range(size)])
    for worker, parent in tree.edges:
        tree.children[parent].append(worker)
        while parent >= 0:
            tree.below[parent].append(worker)
            tree.depths[worker] += 1
            tree.heights[parent] = max(tree.heights[parent], tree.depths[worker])
            parent = moved[parent]
    return Rooted(*tree[:-1], below=[sorted(workers) for workers in tree.below])


class Flow(NamedTuple):
    """What passes one edge of a tree in one direction: the k-th of its segments at `tick + k`."""

    tick: int
    segments: int
    sender: int
    receiver: int
    up: bool
    tree: int
    share: float  # of the whole buffer, in all segments together


def schedule(operation: str, trees: Sequence[Rooted], count: int) -> list[Flow]:
    """All flows of an operation with so many segments. What a pair sends at one tick, it sends in this order."""
    first = trees[0]
    if operation == "reduce":
        return _up(first, count)
    if operation == "broadcast":
        return _down(first, count)
    if operation == "reduce-scatter":
        return _up(first, count) + _of_pieces(first, _down(first, 1, begin=first.height + count - 1))
    if operation == "all-gather":
        return _of_pieces(first, _up(first, 1)) + _down(first, count, begin=first.height)
    up = [_up(tree, count, number, 1 / len(trees)) for number, tree in enumerate(trees)]
    down = [_down(tree, count, tree.height, number, 1 / len(trees)) for number, tree in enumerate(trees)]
    return [flow for flows in (*up, *down) for flow in flows]


def _up(tree: Rooted, count: int, number: int = 0, share: float = 1.0) -> list[Flow]:
    return [Flow(tree.heights[child], count, child, parent, True, number, share) for child, parent in tree.edges]


def _down(tree: Rooted, count: int, begin: int = 0, number: int = 0, share: float = 1.0) -> list[Flow]:
    ticks = [begin + depth for depth in tree.depths]
    return [Flow(ticks[parent], count, parent, child, False, number, share) for child, parent in tree.edges]


def _of_pieces(tree: Rooted, flows: Iterable[Flow]) -> list[Flow]:
    """The same, but every edge carries only the pieces of those below it."""
    size = len(tree.parents)
    return [flow._replace(share=len(tree.below[flow.sender if flow.up else flow.receiver]) / size) for flow in flows]


def measure(flows: Sequence[Flow], nbytes: float) -> Cost:
    """What the flows take for a buffer of so many bytes.

    The path is the sum over all ticks of what the busiest worker sends or receives at them. From one tick at which a
    flow begins or ends to the next, all ticks are alike.
    """
    path = 0.0
    changes = sorted({tick for flow in flows for tick in (flow.tick, flow.tick + flow.segments)})
    for begin, end in pairwise(changes):
        now = [flow for flow in flows if flow.tick <= begin < flow.tick + flow.segments]
        path += (end - begin) * _busiest((flow, flow.share / flow.segments) for flow in now)
    busiest = _busiest((flow, flow.share) for flow in flows)
    return Cost(changes[-1], busiest * nbytes, sum(flow.share for flow in flows) * nbytes, path * nbytes)


def _busiest(loads: Iterable[tuple[Flow, float]]) -> float:
    """The most that one worker sends, or receives."""
    ends: dict[tuple[str, int], float] = {}
    for flow, load in loads:
        for end in (("sends", flow.sender), ("receives", flow.receiver)):
            ends[end] = ends.get(end, 0.0) + load
    return max(ends.values(), default=0.0)


# --- the route -------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """One worker's flows, and the ticks at which it may have something to do."""

    outgoing: list[Flow]
    incoming: list[Flow]
    ticks: range


@dataclass
class Tree(Collective):
    shape: Topology = part(Topology, "binary-tree")
    segment: Bytes = 256 * 2**10

    operations: ClassVar[tuple[str, ...]] = ("all-reduce", "reduce", "broadcast", "reduce-scatter", "all-gather")

    _trees: dict[tuple[int, int | None], list[Rooted]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _plans: dict[tuple[str, int, int, int, int | None], Plan] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_segment(self, self.segment)

    def check(self, workers: int) -> None:
        self._grow(workers)

    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        self._follow(comm, "all-reduce", buffer.tensor_split(self.shape.parts), tag)

    def reduce(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        self._follow(comm, "reduce", [buffer], tag, root)

    def broadcast(self, comm: Comm, buffer: Tensor, tag: str, root: int = 0) -> None:
        self._follow(comm, "broadcast", [buffer], tag, root)

    def reduce_scatter(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        self._follow(comm, "reduce", [buffer], tag)
        from_parent, to_children = self._pieces(comm, buffer)
        comm.exchange([], from_parent, tag)
        comm.exchange(to_children, [], tag)

    def all_gather(self, comm: Comm, buffer: Tensor, tag: str) -> None:
        to_parent, from_children = self._pieces(comm, buffer)
        comm.exchange([], from_children, tag)
        comm.exchange(to_parent, [], tag)
        self._follow(comm, "broadcast", [buffer], tag)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if operation not in self.operations:
            raise self.lacks(operation)
        if size == 1:
            return NOTHING
        count = count_segments(nbytes / (self.shape.parts if operation == "all-reduce" else 1), self.segment)
        return measure(schedule(operation, self._grow(size), count), nbytes)

    def _follow(self, comm: Comm, operation: str, parts: Sequence[Tensor], tag: str, root: int | None = None) -> None:
        """Do what is due, tick by tick; `parts` are what each tree carries."""
        if comm.size == 1 or parts[0].numel() == 0:
            return
        count = count_segments(sum(each.nbytes for each in parts) / len(parts), self.segment)
        segments = [each.tensor_split(count) for each in parts]
        outgoing, incoming, ticks = self._plan(operation, comm.size, comm.rank, count, root)
        landings = [torch.empty_like(segments[flow.tree][0]) if flow.up else None for flow in incoming]
        for tick in ticks:
            sends = [(f.receiver, segments[f.tree][tick - f.tick]) for f in outgoing if f.tick <= tick < f.tick + count]
            recvs, sums = [], []
            for flow, landing in zip(incoming, landings, strict=True):
                if flow.tick <= tick < flow.tick + count:
                    target = segments[flow.tree][tick - flow.tick]
                    place = target if landing is None else landing[: target.numel()]
                    recvs.append((flow.sender, place))
                    if flow.up:
                        sums.append((target, place))
            if sends or recvs:
                comm.exchange(sends, recvs, tag)
            for target, landed in sums:
                target.add_(landed)

    def _plan(self, operation: str, size: int, rank: int, count: int, root: int | None) -> Plan:
        plan = self._plans.get((operation, size, rank, count, root))
        if plan is None:
            flows = schedule(operation, self._grow(size, root), count)
            outgoing = [flow for flow in flows if flow.sender == rank]
            incoming = [flow for flow in flows if flow.receiver == rank]
            begins = [flow.tick for flow in (*outgoing, *incoming)]
            plan = Plan(outgoing, incoming, range(min(begins), max(begins) + count))
            self._plans[operation, size, rank, count, root] = plan
        return plan

    def _grow(self, size: int, root: int | None = None) -> list[Rooted]:
        trees = self._trees.get((size, root))
        if trees is None:
            parents = [find_parents(self.shape, size, number) for number in range(self.shape.parts)]
            trees = self._trees[size, root] = [grow(each, root) for each in parents]
        return trees

    def _pieces(self, comm: Comm, buffer: Tensor) -> tuple[list[Message], list[Message]]:
        """What passes between this worker and its parent, and between it and its children: those below's pieces."""
        tree, edges = self._grow(comm.size)[0], bounds(buffer, comm.size)

        def pieces_of(peer: int, top: int) -> list[Message]:
            return [(peer, buffer[edges[first] : edges[end]]) for first, end in find_runs(tree.below[top])]

        parent = tree.parents[comm.rank]
        above = pieces_of(parent, comm.rank) if parent >= 0 else []
        return above, [message for child in tree.children[comm.rank] for message in pieces_of(child, child)]


def find_runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Rising numbers as ranges without gaps: 1, 2, 3, 7 are (1, 4) and (7, 8)."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n + 1 for n in numbers if n + 1 not in numbers]
    return list(zip(starts, ends, strict=True))
