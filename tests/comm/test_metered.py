"""The figures of a meter, by kind and by peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from workers import SIZES, on_tcp, on_threads

from tutti.comm.base import LOST, Clock, Comm, Pending
from tutti.comm.metered import Meter, Metered, MeteredBackend, Tally, metered
from tutti.comm.threads import ThreadsComm, World


def figures(meter: Meter) -> dict[tuple[str, int], tuple[float, float, int]]:
    return {key: (tally.sent, tally.received, tally.messages) for key, tally in meter.tallies.items()}


def test_bytes_and_messages_by_kind_and_peer() -> None:
    """Worker r sends r+1 doubles of gradients to everybody, and one byte of control to its right neighbour."""

    def work(comm: Comm) -> Meter:
        counted = metered(comm)
        mine = torch.zeros(comm.rank + 1, dtype=torch.float64)
        others = [(p, torch.zeros(p + 1, dtype=torch.float64)) for p in comm.others()]
        counted.exchange([(p, mine) for p in comm.others()], others, "gradients/3")
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        byte = torch.zeros(1, dtype=torch.uint8)
        counted.exchange([(right, byte)], [(left, byte.clone())], "control/x")
        return counted.meter

    meters = on_threads(3, work)
    assert figures(meters[0]) == {
        ("gradients", 1): (8, 16, 1),
        ("gradients", 2): (8, 24, 1),
        ("control", 1): (1, 0, 1),
        ("control", 2): (0, 1, 0),
    }
    assert [meter.sent("gradients") for meter in meters] == [16, 32, 48]
    assert [meter.sent() for meter in meters] == [17, 33, 49]
    assert meters[0].sent("weights") == 0
    assert meters[0].source("gradients") == "metered"


@pytest.mark.parametrize("wire", [on_threads, on_tcp], ids=["threads", "tcp"])
def test_single_messages_count_when_they_are_complete(wire: Callable[..., list[Any]]) -> None:
    def work(comm: Comm) -> dict[tuple[str, int], tuple[float, float, int]]:
        counted = metered(comm)
        if comm.rank == 0:
            pending = counted.send(1, torch.zeros(5), "weights/0")
            pending.wait()
            pending.wait()
            assert counted.recv(1, torch.zeros(7), "weights/lost").wait(deadline=0.01) is LOST
            assert counted.recv_any([1, 2], torch.zeros(2), "control/any") == 2
        elif comm.rank == 1:
            assert counted.meter.sent() == 0
            counted.recv(0, torch.zeros(5), "weights/0").wait()
        else:
            counted.send(0, torch.zeros(2), "control/any").wait()
        counted.inner.barrier()
        return figures(counted.meter)

    assert wire(3, work) == [
        {("weights", 1): (20, 0, 1), ("control", 2): (0, 8, 0)},
        {("weights", 0): (0, 20, 0)},
        {("control", 0): (8, 0, 1)},
    ]


def test_forks_count_on_the_same_meter() -> None:
    def work(comm: Comm) -> float:
        counted = metered(comm)
        fork = counted.fork("lane")
        for wire in (counted, fork, fork.fork("again")):
            wire.exchange(
                [(p, torch.zeros(2)) for p in comm.others()], [(p, torch.zeros(2)) for p in comm.others()], "a"
            )
        return counted.meter.sent("a")

    assert on_threads(2, work) == [24, 24]


def test_metering_a_socket_makes_no_process_group() -> None:
    def work(comm: Comm) -> type[Metered]:
        counted = metered(comm)
        counted.fork("lane").close()
        return type(counted)

    assert on_tcp(2, work) == [Metered, Metered]
    assert not dist.is_initialized()


class Slow(ThreadsComm):
    """Every call takes two seconds of a clock that otherwise stands still."""

    def exchange(self, sends: Any, recvs: Any, tag: str) -> None:
        self.clock.sleep(2)

    def send(self, peer: int, tensor: torch.Tensor, tag: str) -> Pending:
        self.clock.sleep(2)
        return SlowPending(self.clock)


class SlowPending(Pending):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def wait(self, deadline: float | None = None) -> torch.Tensor:
        self.clock.sleep(2)
        return torch.zeros(1)


class Standing(Clock):
    time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_seconds_are_those_in_calls() -> None:
    clock = Standing()
    counted = metered(Slow(World(3, clock=clock), 0, "main"))
    counted.exchange([(1, torch.zeros(1))], [(2, torch.zeros(1)), (1, torch.zeros(1))], "control/x")
    assert (counted.meter.tallies["control", 1].seconds, counted.meter.tallies["control", 2].seconds) == (2, 2)
    pending = counted.send(1, torch.zeros(1), "weights/x")
    clock.sleep(1000)  # what the worker does meanwhile does not count
    pending.wait()
    assert counted.meter.tallies["weights", 1].seconds == 4


def test_rows_for_a_record() -> None:
    meter = Meter({("weights", 1): Tally(8, 4, 2, 0.5, 3), ("control", 0): Tally(1, 0, 1, 0.25)})
    meter.count_formula("gradients/ddp", 10)
    meter.count_formula("gradients/ddp", 5)
    assert meter.lost() == 3
    assert meter.rows() == [
        {"kind": "control", "peer": 0, "sent": 1, "received": 0, "messages": 1, "seconds": 0.25, "lost": 0},
        {"kind": "weights", "peer": 1, "sent": 8, "received": 4, "messages": 2, "seconds": 0.5, "lost": 3},
        {"kind": "gradients", "formula": 15},
    ]
    assert meter.sent("gradients") == 15
    assert meter.source("gradients") == "formula"


# --- a backend's own operations --------------------------------------------------------------------------------------


def run_operation(comm: Comm, name: str) -> None:
    row, rows = torch.zeros(60), torch.zeros(comm.size, 60)
    calls: dict[str, Callable[[], None]] = {
        "broadcast": lambda: comm.broadcast(row, tag="weights/x"),
        "gather": lambda: comm.gather(row, rows if comm.rank == 0 else None, tag="weights/x"),
        "all_gather": lambda: comm.all_gather(row, rows, tag="weights/x"),
        "scatter": lambda: comm.scatter(row, rows if comm.rank == 0 else None, tag="weights/x"),
        "reduce": lambda: comm.reduce(row, tag="weights/x"),
        "reduce_scatter": lambda: comm.reduce_scatter(rows, row, tag="weights/x"),
        "all_to_all": lambda: comm.all_to_all(rows, rows.clone(), tag="weights/x"),
        "all_reduce": lambda: comm.all_reduce(rows.view(-1), tag="weights/x"),
    }
    calls[name]()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "name",
    ["broadcast", "gather", "all_gather", "scatter", "reduce", "reduce_scatter", "all_to_all", "all_reduce"],
)
def test_formula_equals_what_the_wire_counts(name: str, size: int) -> None:
    """The same operation counted by formula and message by message: the same bytes from every worker, said so."""

    def work(comm: Comm) -> tuple[float, float, str]:
        plain = metered(comm)
        run_operation(plain, name)
        comm.wire = "torch"
        backend = metered(comm)
        assert isinstance(backend, MeteredBackend)
        run_operation(backend, name)
        assert not backend.meter.tallies
        return plain.meter.sent("weights"), backend.meter.sent("weights"), backend.meter.source("weights")

    for by_wire, by_formula, source in on_threads(size, work):
        assert by_formula == pytest.approx(by_wire)
        assert source == "formula"
