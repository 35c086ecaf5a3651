"""Some of the workers as a wire of their own: everything a wire can do, and nothing reaches the others."""

from __future__ import annotations

import pytest
import torch
from contracts.comm_checks import OPERATIONS, Check
from workers import on_tcp, on_threads

from tutti.comm.base import Comm, Step
from tutti.comm.metered import metered
from tutti.comm.subset import Subset

MEMBERS = (4, 1, 3)  # of five, in the order of their new numbers


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("check", OPERATIONS, ids=lambda check: check.__name__)
def test_operations(check: Check, strict: bool) -> None:
    def work(comm: Comm) -> None:
        if comm.rank in MEMBERS:
            check(Subset(comm, MEMBERS))

    on_threads(5, work, strict=strict)


def test_numbers_and_the_rest() -> None:
    def work(comm: Comm) -> tuple[int, int, str, bool] | None:
        if comm.rank not in MEMBERS:
            return None
        subset = Subset(comm, MEMBERS)
        return subset.rank, subset.size, subset.wire, subset.native is subset and subset.clock is comm.clock

    results = on_threads(5, work)
    assert [results[rank] for rank in MEMBERS] == [(k, 3, "threads", True) for k in range(3)]


def test_messages_go_beneath() -> None:
    """Single ones, from any, added up and in a stream, over sockets; and the wire beneath counts them."""

    def work(comm: Comm) -> list[float]:
        counted = metered(comm)
        subset = Subset(counted, MEMBERS)
        right, left = (subset.rank + 1) % 3, (subset.rank - 1) % 3
        mine, got = torch.full((2,), float(subset.rank)), torch.zeros(2)
        pending = subset.recv(left, got, "control/single")
        subset.send(right, mine, "control/single").wait()
        pending.wait()
        results = [got[0].item()]
        pending = subset.send(right, mine, "control/any")
        results.append(subset.recv_any([left], got, "control/any"))
        pending.wait()
        total = mine.clone()
        subset.accumulate([(right, mine)], [(left, total)], "control/add")
        results.append(total[0].item())
        subset.stream([Step((right, mine), (left, got)), Step((right, got), (left, total), adds=True)], 1, "control/s")
        results.append(total[0].item())
        assert {peer for _, peer in counted.meter.tallies} == {MEMBERS[left], MEMBERS[right]}
        return results

    results = on_tcp(5, lambda comm: work(comm) if comm.rank in MEMBERS else [])
    for rank, worker in enumerate(MEMBERS):
        left, second = (rank - 1) % 3, (rank - 2) % 3
        assert results[worker] == [left, left, rank + left, rank + left + second]


def test_a_fork_has_the_same_workers() -> None:
    """All workers of the wire beneath call it; here the others are a subset too."""

    def work(comm: Comm) -> float:
        subset = Subset(comm, MEMBERS if comm.rank in MEMBERS else (0, 2))
        fork = subset.fork("lane")
        tensor = torch.ones(1)
        fork.all_reduce(tensor)
        fork.close()
        subset.barrier()
        return tensor.item()

    assert on_threads(5, work) == [2.0, 3.0, 2.0, 3.0, 3.0]


def test_bytes_known_by_formula_are_noted_beneath() -> None:
    def work(comm: Comm) -> float:
        counted = metered(comm)
        Subset(counted, [0]).note("gradients/0", 100)
        return counted.meter.sent("gradients")

    assert on_threads(1, work) == [100.0]


def test_only_members_can_join() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        on_threads(1, lambda comm: Subset(comm, [1, 2]))
