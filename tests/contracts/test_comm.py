"""One conformance suite (comm_*checks.py) over every wire, plain and metered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from contracts.comm_checks import OPERATIONS, Check
from contracts.comm_message_checks import DEADLINES, MESSAGES
from contracts.comm_torch_checks import checks_of_torch, everything_at_every_size
from workers import SIZES, make_tls, on_shared, on_tcp, on_threads, on_torch

from tutti.comm.base import KINDS, Clock, Comm, PeerLost
from tutti.comm.handshake import Tls
from tutti.comm.lossy import Lossy
from tutti.comm.metered import metered
from tutti.errors import UserError

Runner = Callable[..., list[Any]]
METERED = pytest.mark.parametrize("wrap", [lambda comm: comm, metered], ids=["plain", "metered"])


def by_name(checks: list[Check]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["threads", "strict", "tcp", "shared", "tls"])
def any_wire(request: pytest.FixtureRequest) -> Runner:
    return _runner(request)


@pytest.fixture(params=["threads", "tcp", "shared", "tls"])
def tagged_wire(request: pytest.FixtureRequest) -> Runner:
    return _runner(request)


def _runner(request: pytest.FixtureRequest) -> Runner:
    if request.param == "tls":
        tls = request.getfixturevalue("tls")
        return lambda size, function, **options: on_tcp(size, function, tls=tls, **options)
    if request.param == "strict":
        return lambda size, function, **options: on_threads(size, function, strict=True, **options)
    return {"tcp": on_tcp, "shared": on_shared, "threads": on_threads}[request.param]


@pytest.mark.parametrize("any_wire", ["threads", "strict", "tcp", "shared"], indirect=True)
@pytest.mark.parametrize("size", SIZES)
@by_name(OPERATIONS)
def test_operations(any_wire: Runner, size: int, check: Check) -> None:
    any_wire(size, check)


@pytest.mark.parametrize("any_wire", ["tls"], indirect=True)
@by_name(OPERATIONS)
def test_operations_encrypted(any_wire: Runner, check: Check) -> None:
    """Above the encryption everything is as on tcp, so that one size will do."""
    any_wire(5, check)


@by_name(OPERATIONS)
def test_operations_metered(any_wire: Runner, check: Check) -> None:
    any_wire(3, lambda comm: check(metered(comm)))


@METERED
@pytest.mark.parametrize("size", [2, 3])
@by_name(MESSAGES)
def test_messages(tagged_wire: Runner, wrap: Callable[[Comm], Comm], size: int, check: Check) -> None:
    tagged_wire(size, lambda comm: check(wrap(comm)))


@METERED
@by_name(DEADLINES)
def test_deadlines(tagged_wire: Runner, wrap: Callable[[Comm], Comm], check: Check) -> None:
    tagged_wire(2, lambda comm: check(wrap(comm)))


# --- a wire that loses messages: the checks are of kinds that are never lost otherwise --------------------------------


def losing_everything(comm: Comm) -> Comm:
    return Lossy(comm, 0.2, seed=comm.size, deadline=0.0, kinds=KINDS)


def losing_nothing(comm: Comm) -> Comm:
    return Lossy(comm, 0.0, kinds=KINDS)


@pytest.mark.parametrize("strict", [False, True], ids=["threads", "strict"])
@pytest.mark.parametrize("size", SIZES)
@by_name(OPERATIONS)
def test_operations_lossy(strict: bool, size: int, check: Check) -> None:
    on_threads(size, lambda comm: check(losing_everything(comm)), strict=strict)


@METERED
@by_name(MESSAGES)
def test_messages_lossy(wrap: Callable[[Comm], Comm], check: Check) -> None:
    on_threads(3, lambda comm: check(losing_everything(wrap(comm))))


@by_name([*OPERATIONS, *MESSAGES, *DEADLINES])
def test_losing_nothing(check: Check) -> None:
    on_threads(2, lambda comm: check(losing_nothing(comm)))


@by_name(DEADLINES)
def test_deadlines_lossy(check: Check) -> None:
    """Control messages, which are never lost: what a deadline does to those that are is told in tests/comm."""
    on_threads(2, lambda comm: check(Lossy(comm, 0.2)))


# --- what some wires have alone --------------------------------------------------------------------------------------


class Stepping(Clock):
    """Stands still until told; then every look at it finds `step` seconds gone."""

    def __init__(self) -> None:
        self.time, self.step = 0.0, 0.0

    def now(self) -> float:
        self.time += self.step
        return self.time

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def test_deadlines_are_the_clocks(tagged_wire: Runner) -> None:
    """With a clock that jumps a minute at every look, a timeout of 20 s passes at once."""
    clock = Stepping()

    def work(comm: Comm) -> None:
        comm.barrier()
        if comm.rank == 0:
            assert comm.clock is clock
            clock.step = 60.0
            with pytest.raises(PeerLost, match="silent for 20 s"):
                comm.recv(1, torch.zeros(1), "control/never").wait()
            clock.step = 0.0
            comm.send(1, torch.ones(1), "control/end").wait()
        else:
            while clock.step == 0.0 and clock.time == 0.0:
                time.sleep(0.001)
            while clock.step:
                time.sleep(0.001)
            comm.recv(0, torch.zeros(1), "control/end").wait()

    begun = time.perf_counter()
    tagged_wire(2, work, clock=clock)
    assert time.perf_counter() - begun < 15


def test_strict_refuses_what_nccl_cannot_do() -> None:
    def work(comm: Comm) -> None:
        for call in (
            lambda: comm.send(0, torch.zeros(1), "control/x"),
            lambda: comm.recv(0, torch.zeros(1), "control/x"),
            lambda: comm.recv_any([0], torch.zeros(1), "control/x"),
        ):
            with pytest.raises(UserError, match=r"grouped messages .* use exchange"):
                call()

    on_threads(2, work, strict=True)


def test_strict_ignores_tags() -> None:
    """First in first out per pair: a route that relies on tags gets the wrong message here, as it would on NCCL."""

    def work(comm: Comm) -> float:
        if comm.rank == 0:
            comm.exchange([(1, torch.tensor([1.0]))], [], "control/a")
            return 0.0
        tensor = torch.zeros(1)
        comm.exchange([], [(0, tensor)], "control/b")
        return tensor.item()

    assert on_threads(2, work, strict=True)[1] == 1.0


# --- torch.distributed: one launch of processes for everything -------------------------------------------------------


@pytest.fixture(scope="module")
def torch_outcomes() -> list[dict[str, str]]:
    return on_torch(max(SIZES), everything_at_every_size)


@pytest.mark.parametrize(
    ("check", "size"), [(check.__name__, size) for size in SIZES for check in checks_of_torch(size)]
)
def test_torch(torch_outcomes: list[dict[str, str]], check: str, size: int) -> None:
    for outcome in torch_outcomes[:size]:
        assert outcome[f"{check} {size}"] == "passed", outcome[f"{check} {size}"]


@by_name(checks_of_torch(3))
def test_torch_metered(torch_outcomes: list[dict[str, str]], check: Check) -> None:
    for outcome in torch_outcomes[:3]:
        assert outcome[f"{check.__name__} metered"] == "passed", outcome[f"{check.__name__} metered"]
