"""The backend's own operations, on a real backend."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from catalogue import every
from contracts.collective_checks import assert_did, contributions, do_all
from torch import Tensor
from workers import on_torch

from tutti.collectives.base import OPERATIONS, Collective
from tutti.collectives.native import Native
from tutti.comm.base import Comm
from tutti.comm.handshake import Access
from tutti.comm.metered import metered
from tutti.comm.tcp import TcpComm
from tutti.spec import SpecError, parse

WAYS = [spec for spec in every(Collective) if spec.startswith("native")]
LENGTH = 12


def test_every_way_is_known() -> None:
    assert len(WAYS) == 4


def test_unknown_way() -> None:
    with pytest.raises(
        SpecError, match="by of 'native' is one of all-reduce, reduce-broadcast, all-gather, gather-scatter"
    ):
        parse("native(by=magic)", Collective)


def run_all_ways(comm: Comm) -> dict[str, tuple[bool, bool, float, str]]:
    """Each way over the process group, then over sockets that make a group of their own for it."""
    store = dist.PrefixStore("sockets", dist.distributed_c10d._get_default_store())
    sockets = TcpComm(comm.rank, comm.size, store, Access("127.0.0.1", b"known to all"))
    outcomes = {}
    for wire in (comm, sockets):
        for spec in WAYS:
            counted = metered(wire)
            route = parse(spec, Collective)
            route.prepare(counted)
            right = True
            for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
                buffer = torch.full((LENGTH,), comm.rank + 1.0, dtype=dtype)
                route.run(counted, buffer, "gradients/0")
                right = right and buffer.tolist() == [6.0] * LENGTH
            meter = counted.meter
            outcomes[f"{spec} {wire.wire}"] = (
                right,
                not meter.tallies,
                meter.sent("gradients"),
                meter.source("gradients"),
            )
    sockets.close()
    return outcomes


def test_on_gloo() -> None:
    """The right sums, nothing over our wire, and bytes by formula that add up to the cost."""
    results = on_torch(3, run_all_ways)
    for spec in WAYS:
        for wire in ("torch", "tcp"):
            outcomes = [result[f"{spec} {wire}"] for result in results]
            assert all(right and not_on_our_wire for right, not_on_our_wire, _, _ in outcomes), spec
            assert {source for *_, source in outcomes} == {"formula"}
            cost = parse(spec, Collective).cost(3, LENGTH * (8 + 4 + 2 + 2))
            assert sum(sent for _, _, sent, _ in outcomes) == pytest.approx(cost.total)


def run_all_operations(comm: Comm) -> dict[str, list[list[float]]]:
    """What each gives, with equal pieces and with others; nothing goes over our wire."""
    counted = metered(comm)
    buffers = {operation: do_all(counted, Native(), operation, cases(operation)) for operation in OPERATIONS}
    assert not counted.meter.tallies
    return {operation: [buffer.tolist() for buffer in found] for operation, found in buffers.items()}


def cases(operation: str) -> list[Tensor]:
    return [contributions(3, length) for length in ((LENGTH,) if operation == "all-to-all" else (LENGTH, LENGTH + 1))]


def test_every_operation_on_gloo() -> None:
    results = on_torch(3, run_all_operations)
    for operation in OPERATIONS:
        for rows, *buffers in zip(cases(operation), *[result[operation] for result in results], strict=True):
            assert_did(operation, rows, [torch.tensor(buffer) for buffer in buffers], root=0)


def test_contributions_meet_where_they_are_gathered() -> None:
    assert {by: Native(by).meets for by in ("all-reduce", "reduce-broadcast", "all-gather", "gather-scatter")} == {
        "all-reduce": False,
        "reduce-broadcast": False,
        "all-gather": True,
        "gather-scatter": True,
    }
