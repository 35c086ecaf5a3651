"""What every route must do, for every one found in the folder, in every way it offers, and for every operation it has.

Sums are held against torch's, bytes against the cost on a metered wire, rounds and path against logical clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import pytest
import torch
from catalogue import every
from contracts.collective_checks import DTYPES, ROOTED, assert_did, contributions, do_all
from logical_time import time_operation
from torch import Tensor
from workers import SIZES, on_tcp, on_threads

from tutti.collectives.base import NOTHING, OPERATIONS, Collective
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.spec import parse

# of the topologies only some hold a tree for every number of workers; tests/collectives/test_tree.py tries the others
TREES = ["tree(shape=binary-tree)", "tree(shape=double-binary-tree)", "tree(shape=chain)", "tree(shape=star)"]
FOUND = [spec for spec in every(Collective) if not spec.startswith("tree(")] + TREES
# segments of which every length from 9 on needs several; roots and hosts that depend on the number of workers
SPECS = [
    *FOUND,
    "ring(segment=32B)",
    "all-gather(short=0, segment=32B)",
    "tree(segment=32B)",
    "tree(double-binary-tree, segment=32B)",
    "star(root={last})",
    "hierarchical(hosts={hosts})",
    "hierarchical(tree(segment=32B), halving-doubling, hosts={hosts})",
    "hierarchical(star, hierarchical(direct, butterfly), hosts={hosts})",
]
OTHER_SIZES = (4, 6, 7, *range(9, 17))
LENGTHS = (0, 1, 2, 7, 64, 300)
# every length in one dtype, every dtype at lengths below, at and above the number of workers and in several segments
CASES_OF_A_SUM = [(torch.float32, length) for length in LENGTHS]
CASES_OF_A_SUM += [(dtype, length) for dtype in DTYPES if dtype != torch.float32 for length in (0, 7, 64)]

MODES = pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
EVERY = pytest.mark.parametrize("spec", SPECS)
AT_SIZES = pytest.mark.parametrize("size", SIZES)


def make(spec: str, size: int) -> Collective:
    """Hosts of two, three and one worker, as long as there are any; the last worker may be somebody's root."""
    hosts, left = [], size
    for count in cycle((2, 3, 1)):
        if left == 0:
            break
        hosts.append(min(count, left))
        left -= hosts[-1]
    return parse(spec.format(last=size - 1, hosts="x".join(map(str, hosts))), Collective)


WAYS = [spec for spec in SPECS if spec.startswith("native")]  # to all-reduce; their other operations are the same
CASES = [(s, each) for s in SPECS for each in make(s, 3).operations if each == "all-reduce" or s not in WAYS[1:]]
EVERY_OPERATION = pytest.mark.parametrize(("spec", "operation"), CASES)
EVERY_OTHER_OPERATION = pytest.mark.parametrize(("spec", "operation"), [c for c in CASES if c[1] != "all-reduce"])


def assert_does(spec: str, operation: str, cases: Sequence[Tensor], strict: bool, root: int = 0) -> None:
    """All workers share one route, as the threads of a notebook would."""
    size = len(cases[0])
    route = make(spec, size)
    results = on_threads(size, lambda comm: do_all(comm, route, operation, cases, root), strict=strict)
    for rows, *buffers in zip(cases, *results, strict=True):
        assert_did(operation, rows, buffers, root)


# --- what it does ----------------------------------------------------------------------------------------------------


@MODES
@AT_SIZES
@EVERY
def test_everybody_ends_with_the_same_sum(spec: str, size: int, strict: bool) -> None:
    cases = [contributions(size, length, dtype) for dtype, length in CASES_OF_A_SUM]
    assert_does(spec, "all-reduce", cases, strict)


@EVERY
def test_any_number_of_workers(spec: str) -> None:
    for size in OTHER_SIZES:
        assert_does(spec, "all-reduce", [contributions(size, 37), contributions(size, 5, torch.bfloat16)], strict=False)


@AT_SIZES
@EVERY_OTHER_OPERATION
def test_every_operation(spec: str, operation: str, size: int) -> None:
    lengths = (0, size, 12 * size) if operation == "all-to-all" else (0, 1, 7, 12 * size)
    cases = [contributions(size, length, dtype) for length, dtype in zip(lengths, DTYPES, strict=False)]
    for root in {0, size - 1} if operation in ROOTED else {0}:
        assert_does(spec, operation, cases, strict=True, root=root)


@EVERY_OTHER_OPERATION
def test_every_operation_with_any_number_of_workers(spec: str, operation: str) -> None:
    for size in OTHER_SIZES:
        assert_does(spec, operation, [contributions(size, 3 * size)], strict=False, root=size // 3)


@EVERY_OPERATION
def test_a_part_of_a_longer_buffer(spec: str, operation: str) -> None:
    """In place, and not a byte beside it."""
    rows = contributions(3, 21)
    longer = torch.full((3, 31), -1.0)
    longer[:, 5:-5] = rows
    route = make(spec, 3)
    on_threads(3, lambda comm: route.perform(operation, comm, longer[comm.rank, 5:-5], "gradients/0"))
    assert_did(operation, rows, list(longer[:, 5:-5]), root=0)
    assert longer[:, :5].eq(-1).all()
    assert longer[:, -5:].eq(-1).all()


@MODES
@AT_SIZES
@pytest.mark.parametrize("spec", [spec for spec in SPECS if make(spec, 3).meets])
def test_other_combinations_where_contributions_meet(spec: str, size: int, strict: bool) -> None:
    """Rows come in the order of the workers, whole and once each."""
    rows = contributions(size, 50)

    def combine(given: Tensor) -> Tensor:
        assert given.equal(rows)
        return given.max(0).values

    def work(comm: Comm) -> Tensor:
        buffer = rows[comm.rank].clone()
        make(spec, size).run(comm, buffer, "gradients/0", combine)
        return buffer

    for result in on_threads(size, work, strict=strict):
        assert result.equal(rows.max(0).values)


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("spec", [spec for spec in SPECS if not spec.startswith(("native", "auto"))])
def test_over_sockets(spec: str, size: int) -> None:
    """Every operation, one behind the other, with a buffer of several segments too.

    All but native, which needs processes, and auto, which would measure; their own tests do that.
    """
    route = make(spec.replace("32B", "32KiB"), size)
    cases = [contributions(size, length) for length in (size, 20 * size, 30_000 * size)]
    results = on_tcp(size, lambda comm: [do_all(comm, route, each, cases) for each in route.operations])
    for n, operation in enumerate(route.operations):
        for rows, *buffers in zip(cases, *[result[n] for result in results], strict=True):
            assert_did(operation, rows, buffers, root=0)


# --- what it takes ---------------------------------------------------------------------------------------------------


def meter_operation(route: Collective, operation: str, size: int, length: int) -> list[Meter]:
    def work(comm: Comm) -> Meter:
        counted = metered(comm)
        route.prepare(counted)
        route.perform(operation, counted, torch.zeros(length), "gradients/0")
        return counted.meter

    return on_threads(size, work)


@AT_SIZES
@EVERY_OPERATION
def test_bytes_are_those_of_the_cost(spec: str, operation: str, size: int) -> None:
    """On the metered wire; to the byte where the length divides, else within an element per message."""
    route = make(spec, size)
    for length in (240, 0) if operation == "all-to-all" else (240, 301, 5):
        meters = meter_operation(route, operation, size, length)
        cost = route.cost(size, 4 * length, operation)
        sent = [meter.sent("gradients") for meter in meters]
        received = [sum(t.received for (kind, _), t in m.tallies.items() if kind == "gradients") for m in meters]
        rounding = 1e-9 if length % (6 * size) == 0 else 4 * 2 * size
        assert sum(sent) == sum(received) == pytest.approx(cost.total, abs=size * rounding)
        assert max(*sent, *received) == pytest.approx(cost.busiest, abs=rounding)


@pytest.mark.parametrize(
    ("spec", "operation"), [case for case in CASES if case[0] != "auto"]
)  # whose bytes depend on S
def test_a_rehearsal_counts_the_same_bytes(spec: str, operation: str) -> None:
    """All but auto, whose route depends on the buffer's length."""
    for size in range(1, 17):
        route = make(spec, size)
        loads, cost = route.loads(size, operation), route.cost(size, 10**6, operation)
        assert sum(load.sent for load in loads) == pytest.approx(sum(load.received for load in loads))
        assert sum(load.sent for load in loads) * 10**6 == pytest.approx(cost.total)
        assert max(max(load) for load in loads) * 10**6 == pytest.approx(cost.busiest)


CLOCKED = pytest.mark.parametrize(
    ("spec", "operation"), [case for case in CASES if not case[0].startswith(("native", "auto"))]
)
CLOCKED_SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 16)
# where hosts or subtrees are unequal, or some workers have no partner in a round, not all wait for one another
LOOSE = ("halving-doubling", "hierarchical(", "tree")


@CLOCKED
def test_rounds_are_those_of_the_cost(spec: str, operation: str) -> None:
    """With a latency of one and endless bandwidth; in one segment, since segments need not wait for each other."""
    for size in CLOCKED_SIZES:
        route = make(spec.replace("32B", "1MiB"), size)
        rounds = route.cost(size, 48 * size, operation).rounds
        took = time_operation(route, operation, size, 12 * size, latency=1.0, seconds_per_byte=0.0)
        assert took == rounds or (spec.startswith(LOOSE) and rounds - 3 <= took < rounds)


@CLOCKED
def test_the_path_is_that_of_the_cost(spec: str, operation: str) -> None:
    """With a second for every byte and no latency.

    In a tree some run ahead of their tick; and a tick's messages, counted as if they could all share the links as they
    liked, pass one after another here.
    """
    for size in CLOCKED_SIZES:
        route, length = make(spec, size), (12 if spec.startswith("all-gather") else 48) * size
        path = route.cost(size, 4 * length, operation).path
        took = time_operation(route, operation, size, length, latency=0.0, seconds_per_byte=1.0)
        if spec.startswith(("tree", "hierarchical(")):
            assert 0.65 * path <= took <= 1.12 * path
        else:
            assert took == pytest.approx(path)


@EVERY_OPERATION
def test_cost(spec: str, operation: str) -> None:
    assert make(spec, 1).cost(1, 1000, operation) == NOTHING
    for size in SIZES[1:]:
        route = make(spec, size)
        once, twice = route.cost(size, 1000, operation), route.cost(size, 2000, operation)
        assert 1 <= once.rounds <= twice.rounds
        assert (twice.busiest, twice.total) == (pytest.approx(2 * once.busiest), pytest.approx(2 * once.total))
        assert once.path < twice.path <= 2 * once.path * (1 + 1e-9)
        assert once.busiest <= once.total <= size * once.busiest * (1 + 1e-9)
        assert once.busiest <= once.path * (1 + 1e-9)
        assert once.seconds(latency=2.0, bandwidth=10.0) == once.rounds * 2 + once.path / 10


@EVERY
def test_operations_it_does_not_have(spec: str) -> None:
    route = make(spec, 3)
    assert set(route.operations) <= set(OPERATIONS)
    for operation in set(OPERATIONS) - set(route.operations):
        with pytest.raises(UserError, match=rf"has no {operation}, only all-reduce"):
            route.perform(operation, World(3).comm(0), torch.zeros(3), "gradients/0")
        with pytest.raises(UserError, match=rf"has no {operation}, only all-reduce"):
            route.cost(3, 1000, operation)


@EVERY
def test_text_reads_back(spec: str) -> None:
    route = make(spec, 3)
    assert parse(str(route), Collective) == route
