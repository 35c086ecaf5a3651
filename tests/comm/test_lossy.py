"""What is lost, what comes after all, what it costs; and that nothing is mixed up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from launch_targets import exchange_with_losses
from training import set_up, train, weights
from workers import on_shared, on_tcp, on_threads

from tutti.algorithms.base import Algorithm
from tutti.comm.base import LOST, Clock, Comm, Step
from tutti.comm.lossy import Loss, Lossy
from tutti.comm.metered import Metered, metered
from tutti.comm.rehearsal import Rehearsal
from tutti.comm.rendezvous import WireOptions
from tutti.comm.subset import Subset
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.launch import LaunchOptions, launch
from tutti.presets import PRESETS
from tutti.spec import parse

P = 0.3
DEADLINE = 0.001


def find_seed(wanted: Callable[[Loss], bool], p: float = P) -> int:
    """The first seed with which that happens which a test is about."""
    return next(seed for seed in range(10_000) if wanted(Loss(p, seed)))


def copies_lost(loss: Loss, sender: int, receiver: int, tag: str, number: int = 1, wire: str = "main") -> int:
    return loss.count(f"{wire} {sender} {receiver} {tag} {number}")


class Noting(Clock):
    """Sleeps not, and notes how long it should have."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


# --- what is lost ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5])
def test_the_share_of_what_is_lost_is_p(p: float) -> None:
    """Within four standard deviations, of first copies and of copies in all."""
    count, loss = 20_000, Loss(p, seed=3)
    lost = sum(loss.draw(f"message {k}") for k in range(count))
    assert abs(lost - count * p) < 4 * math.sqrt(count * p * (1 - p))
    copies = sum(loss.count(f"message {k}") for k in range(count))
    assert abs(copies - count * p / (1 - p)) < 4 * math.sqrt(count * p) / (1 - p)


def test_fates_of_neighbouring_messages_are_independent() -> None:
    fates = torch.tensor([Loss(0.5).draw(f"main 0 1 gradients/0 {k}") for k in range(10_000)], dtype=torch.float64)
    others = [
        fates.roll(1),
        torch.tensor([Loss(0.5, 1).draw(f"main 0 1 gradients/0 {k}") for k in range(10_000)]),
        torch.tensor([Loss(0.5).draw(f"main 1 0 gradients/0 {k}") for k in range(10_000)]),
        torch.tensor([Loss(0.5).draw(f"main 0 1 gradients/0 {k}", copy=1) for k in range(10_000)]),
    ]
    for other in others:
        assert abs(torch.corrcoef(torch.stack([fates, other.double()]))[0, 1]) < 0.04


def test_what_is_lost_at_one_p_is_lost_at_every_higher_one() -> None:
    messages = [f"message {k}" for k in range(1000)]
    few, many = ([Loss(p).draw(message) for message in messages] for p in (0.1, 0.2))
    assert sum(few) < sum(many)
    assert all(more for less, more in zip(few, many, strict=True) if less)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, math.nan])
def test_p_is_a_share_below_all(p: float) -> None:
    with pytest.raises(UserError, match="at least 0 and below 1, not"):
        Lossy(Rehearsal(0, 2), p)


def test_kinds_and_deadlines_are_checked() -> None:
    with pytest.raises(UserError, match=r"no traffic of the kind 'gradient' to lose; there is gradients, weights"):
        Lossy(Rehearsal(0, 2), 0.1, kinds=["gradient"])
    with pytest.raises(UserError, match="sent again must not be -1 s"):
        Lossy(Rehearsal(0, 2), 0.1, deadline=-1.0)


def test_a_backend_does_not_pass_it() -> None:
    wire = Rehearsal(0, 2)
    wire.wire = "torch"
    with pytest.raises(UserError, match="use --wire shared or tcp"):
        Lossy(wire, 0.1)
    assert on_threads(1, lambda comm: (lossy := Lossy(comm, 0.1)).native is lossy) == [True]

    def ask(comm: Comm) -> None:
        with pytest.raises(UserError, match="take a route such as ring, or leave --loss out"):
            _ = Lossy(comm, 0.1).native

    on_tcp(1, ask)


# --- going on without it ---------------------------------------------------------------------------------------------


def try_many(comm: Comm, rounds: int = 40, length: int = 3) -> list[tuple[int, int]]:
    """Everybody numbers its messages to everybody; returns (sender, number) of all that came."""
    came = []
    for number in range(rounds):
        sends = [(peer, torch.tensor([comm.rank, peer, number] * length)) for peer in comm.others()]
        recvs = [(peer, torch.full((3 * length,), -1)) for peer in comm.others()]
        for (peer, got), here in zip(recvs, comm.start_exchange(sends, recvs, "weights/0")(), strict=True):
            assert got.tolist() == ([peer, comm.rank, number] if here else [-1, -1, -1]) * length
            came += [(peer, number)] if here else []
    return came


@pytest.mark.parametrize("wire", [on_threads, on_tcp, on_shared], ids=["threads", "tcp", "shared"])
def test_lost_messages_are_not_delivered_and_never_for_others(wire: Callable[..., list[Any]]) -> None:
    """The same ones on every wire: those the draw says."""
    results = wire(3, lambda comm: try_many(Lossy(comm, P, seed=5)))
    for rank, came in enumerate(results):
        for peer in {0, 1, 2} - {rank}:
            fates = [Loss(P, 5).draw(f"main {peer} {rank} weights/0 {number + 1}") for number in range(40)]
            assert [number for number, lost in enumerate(fates) if not lost] == [n for p, n in came if p == peer]
            assert 0 < sum(fates) < 40


def test_strict_wires_lose_as_well() -> None:
    assert on_threads(3, lambda comm: try_many(Lossy(comm, P)), strict=True) == on_threads(
        3, lambda comm: try_many(Lossy(comm, P))
    )


def test_other_seeds_lose_others() -> None:
    one, same, other = (on_threads(2, lambda comm, s=seed: try_many(Lossy(comm, P, s))) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_nothing_is_lost_with_p_0() -> None:
    assert [len(came) for came in on_threads(2, lambda comm: try_many(Lossy(comm, 0.0)))] == [40, 40]


@pytest.mark.parametrize("kind", ["control", "metrics", "buffers"])
def test_what_holds_a_run_together_is_never_lost(kind: str) -> None:
    def work(comm: Comm) -> int:
        lossy = Lossy(comm, 0.9)
        for _ in range(50):
            other, tensor = 1 - comm.rank, torch.zeros(1)
            assert lossy.start_exchange([(other, torch.ones(1))], [(other, tensor)], f"{kind}/x")() == [True]
            lossy.exchange([(other, torch.ones(1))], [(other, tensor)], f"{kind}/x")
            lossy.accumulate([(other, torch.ones(1))], [(other, tensor)], f"{kind}/x")
            lossy.stream([Step((other, torch.ones(1)), (other, tensor), adds=True)], 1, f"{kind}/x")
            pending = lossy.send(other, torch.ones(1), f"{kind}/x")
            lossy.recv(other, tensor, f"{kind}/x").wait()
            pending.wait()
        return lossy.meter.lost()

    clock = Noting()
    assert on_threads(2, work, clock=clock) == [0, 0]
    assert clock.slept == []


def test_trying_and_insisting_may_alternate() -> None:
    """Also under one tag: what was lost for good is not what the next exchange gets."""

    def work(comm: Comm) -> None:
        lossy, other = Lossy(comm, P, deadline=0.0), 1 - comm.rank
        for number in range(60):
            mine, got = torch.tensor([number]), torch.tensor([-1])
            if number % 2:
                lossy.exchange([(other, mine)], [(other, got)], "gradients/0")
                assert got.item() == number
            else:
                (here,) = lossy.start_exchange([(other, mine)], [(other, got)], "gradients/0")()
                assert got.item() == (number if here else -1)

    on_threads(2, work)


def test_forks_lose_and_draw_for_themselves() -> None:
    def work(comm: Comm) -> list[list[tuple[int, int]]]:
        lossy = Lossy(comm, P, seed=2)
        wires = [lossy, lossy.fork("lane"), lossy.fork("lane"), lossy.fork("other").fork("lane")]
        assert all(wire.meter is lossy.meter for wire in wires)
        return [try_many(wire) for wire in wires]

    for each in on_threads(2, work):
        assert len({tuple(came) for came in each}) == 4
        assert all(len(came) < 40 for came in each)


def test_some_of_the_workers() -> None:
    def work(comm: Comm) -> list[tuple[int, int]]:
        lossy = Lossy(comm, P)
        return try_many(Subset(lossy, (2, 0))) if comm.rank != 1 else []

    came = on_threads(3, work)
    assert 0 < len(came[0]) < 40
    assert 0 < len(came[2]) < 40


# --- sending again ---------------------------------------------------------------------------------------------------


def ring_of_ones(comm: Comm, rounds: int = 20, length: int = 5) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for number in range(rounds):
        got = torch.zeros(length)
        comm.exchange([(right, torch.full((length,), number + 0.5))], [(left, got)], "gradients/0")
        assert torch.equal(got, torch.full((length,), number + 0.5))


def test_everything_comes_after_a_deadline_for_every_loss() -> None:
    """Both ends are held up, and nobody else."""
    clocks = [Noting() for _ in range(3)]

    def work(comm: Comm) -> None:
        comm.clock = clocks[comm.rank]
        ring_of_ones(Lossy(comm, P, seed=1, deadline=2.0))

    on_threads(3, work)
    for rank, clock in enumerate(clocks):
        left, right = (rank - 1) % 3, (rank + 1) % 3
        lost = [
            max(
                copies_lost(Loss(P, 1), rank, right, "gradients/0", number),
                copies_lost(Loss(P, 1), left, rank, "gradients/0", number),
            )
            for number in range(1, 21)
        ]
        assert clock.slept == [2.0 * times for times in lost if times]
        assert max(lost) > 1


def test_it_really_sleeps() -> None:
    seed = find_seed(lambda loss: copies_lost(loss, 0, 1, "gradients/0") == 2)

    def work(comm: Comm) -> float:
        begun = comm.clock.now()
        lossy = Lossy(comm, P, seed, deadline=0.05)
        sends, recvs = ([(1, torch.ones(1))], []) if comm.rank == 0 else ([], [(0, torch.zeros(1))])
        lossy.exchange(sends, recvs, "gradients/0")
        return comm.clock.now() - begun

    assert all(0.1 <= seconds < 5 for seconds in on_threads(2, work))


@pytest.mark.parametrize("wire", [on_threads, on_tcp], ids=["threads", "tcp"])
@pytest.mark.parametrize("nested", ["lossy(comm)", "lossy(metered(comm))", "metered(lossy(comm))"])
def test_bytes_are_those_of_all_copies_at_the_sender_and_of_one_at_the_receiver(
    wire: Callable[..., list[Any]], nested: str
) -> None:
    """However the two are nested, there is one meter, and it counts what passes beneath."""

    def work(comm: Comm) -> tuple[float, float, int, int, float]:
        beneath = Metered(comm, metered(comm).meter)
        wires = {
            "lossy(comm)": lambda: Lossy(comm, P, 4, DEADLINE),
            "lossy(metered(comm))": lambda: Lossy(beneath, P, 4, DEADLINE),
            "metered(lossy(comm))": lambda: metered(Lossy(comm, P, 4, DEADLINE)),
        }
        lossy = wires[nested]()
        assert nested != "lossy(metered(comm))" or lossy.meter is beneath.meter
        ring_of_ones(lossy)
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        out, into = lossy.meter.tallies["gradients", right], lossy.meter.tallies["gradients", left]
        return out.sent, into.received, out.messages, out.lost, lossy.meter.sent("gradients")

    for rank, figures in enumerate(wire(3, work)):
        lost = sum(copies_lost(Loss(P, 4), rank, (rank + 1) % 3, "gradients/0", n) for n in range(1, 21))
        assert lost > 0
        assert figures == (20 * (20 + lost), 20 * 20, 20 + lost, lost, 20 * (20 + lost))


@pytest.mark.parametrize("nested", [lambda comm: comm, metered, lambda comm: Subset(comm, range(3))])
def test_bytes_of_what_was_tried(nested: Callable[[Comm], Comm]) -> None:
    """A lost message was sent and not received."""

    def work(comm: Comm) -> tuple[int, float, float, int]:
        lossy = Lossy(comm, P)
        came = try_many(nested(lossy), rounds=30, length=1)
        tallies = lossy.meter.tallies.values()
        return len(came), sum(t.sent for t in tallies), sum(t.received for t in tallies), lossy.meter.lost()

    results = on_threads(3, work)
    for came, sent, received, _ in results:
        assert sent == 2 * 30 * 24
        assert received == came * 24
    assert sum(lost for *_, lost in results) == 3 * 2 * 30 - sum(came for came, *_ in results) > 0


def test_a_run_counts_on_the_meter_of_its_lossy_wire() -> None:
    """DDP of two workers sends each half of the bucket and each sum once, and every copy that got lost."""

    def work(comm: Comm, p: float) -> tuple[float, int, bool]:
        lossy = Lossy(comm, p, deadline=DEADLINE)
        with set_up(lossy) as run:
            before, lost = run.meter.sent("gradients"), lossy.meter.lost()
            train(run, range(10))
            return run.meter.sent("gradients") - before, lossy.meter.lost() - lost, run.comm is lossy

    plain, resent = (on_threads(2, lambda comm, p=p: work(comm, p)) for p in (0.0, P))
    for (nbytes, nothing, _), (more, lost, same) in zip(plain, resent, strict=True):
        assert nothing == 0
        assert lost > 0
        assert same
        assert nbytes * (1 + 0.5 * lost / 20) <= more <= nbytes * (1 + 1.5 * lost / 20)  # halves are not quite equal


def train_with_losses(comm: Comm, algorithm: str, p: float) -> tuple[torch.Tensor, int]:
    with set_up(Lossy(comm, p, deadline=0.0), algorithm) as run:
        train(run, range(5))
        return weights(run.replica.model), run.meter.lost()


def tolerates(preset: str) -> bool:
    exchange = getattr(parse(preset, Algorithm), "exchange", None)
    return isinstance(exchange, Exchange) and exchange.tolerates_loss


INSISTING = [name for name in PRESETS if not tolerates(name)] + ["gradient-average(all-reduce(star, median))"]


@pytest.mark.parametrize("algorithm", INSISTING)
@pytest.mark.parametrize("size", [2, 5])
def test_what_does_not_tolerate_loss_gives_the_same_bits(algorithm: str, size: int) -> None:
    plain, resent = (on_threads(size, lambda comm, p=p: train_with_losses(comm, algorithm, p)) for p in (0.0, P))
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(plain, resent, strict=True))
    assert sum(lost for _, lost in resent) > 0


@pytest.mark.parametrize("algorithm", [name for name in PRESETS if tolerates(name)])
def test_what_tolerates_loss_gives_the_same_bits_every_time(algorithm: str) -> None:
    """And others than without loss."""
    plain, lossy, again = (on_threads(4, lambda comm, p=p: train_with_losses(comm, algorithm, p)) for p in (0.0, P, P))
    for (without, _), (one, _), (other, _) in zip(plain, lossy, again, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)
        assert not torch.equal(one, without)


# --- single messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [on_threads, on_tcp, on_shared], ids=["threads", "tcp", "shared"])
def test_whoever_does_not_wait_gets_lost(wire: Callable[..., list[Any]]) -> None:
    """The first is lost, and given up before it is sent again; the second one arrives, and is the second one."""
    seed = find_seed(lambda loss: [copies_lost(loss, 1, 0, "weights/0", k) for k in (1, 2)] == [2, 0])

    def work(comm: Comm) -> tuple[float, int]:
        lossy = Lossy(comm, P, seed, deadline=0.03)
        if comm.rank == 1:
            lossy.recv(0, torch.zeros(1), "control/go").wait()
            for number in (1.0, 2.0):
                assert lossy.send(0, torch.full((4,), number), "weights/0").wait() is not LOST
            return lossy.meter.sent("weights"), lossy.meter.lost()
        tensor = torch.zeros(4)
        pending = lossy.recv(1, tensor, "weights/0")
        comm.send(1, torch.ones(1), "control/go").wait()
        begun = comm.clock.now()
        assert pending.wait(deadline=0.04) is LOST
        assert comm.clock.now() - begun >= 0.04
        assert tensor.tolist() == [0.0] * 4
        assert lossy.recv(1, tensor, "weights/0").wait(deadline=10.0) is tensor
        assert tensor.tolist() == [2.0] * 4
        return lossy.meter.tallies["weights", 1].received, lossy.meter.lost()

    assert wire(2, work) == [(16.0, 0), (64.0, 2)]


def test_whoever_waits_long_enough_gets_it() -> None:
    seed = find_seed(lambda loss: copies_lost(loss, 1, 0, "weights/0") == 1)

    def work(comm: Comm) -> None:
        lossy = Lossy(comm, P, seed, deadline=0.02)
        if comm.rank == 1:
            pending = lossy.send(0, torch.ones(4), "weights/0")
            assert pending.wait(deadline=0.001) is LOST  # not yet
            assert pending.wait() is not LOST
        else:
            tensor, begun = torch.zeros(4), comm.clock.now()
            pending = lossy.recv(1, tensor, "weights/0")
            assert pending.wait(deadline=5.0) is pending.wait() is tensor
            assert tensor.tolist() == [1.0] * 4
            assert comm.clock.now() - begun >= 0.02

    on_threads(2, work)


def test_silence_is_silence_whatever_is_lost() -> None:
    """Copies that do not come are given up, all of them."""
    seed = find_seed(lambda loss: [copies_lost(loss, 1, 0, "weights/0", k) for k in (1, 2)] == [2, 1])

    def work(comm: Comm) -> None:
        lossy = Lossy(comm, P, seed, deadline=0.001)
        if comm.rank == 0:
            assert lossy.recv(1, torch.zeros(1), "weights/0").wait(deadline=0.02) is LOST
            comm.send(1, torch.ones(1), "control/go").wait()
            tensor = torch.zeros(1)
            lossy.recv(1, tensor, "weights/0").wait()
            assert tensor.item() == 2.0
        else:
            comm.recv(0, torch.zeros(1), "control/go").wait()
            for number in (1.0, 2.0):
                lossy.send(0, torch.tensor([number]), "weights/0").wait()

    on_threads(2, work)
    on_tcp(2, work)


def test_from_any() -> None:
    def work(comm: Comm) -> list[tuple[int, float]]:
        lossy, heard = Lossy(comm, P, deadline=0.0), []
        for number in range(20):
            if comm.rank:
                lossy.send(0, torch.tensor([number]), "weights/0").wait()
                continue
            for _ in comm.others():
                tensor = torch.zeros(1, dtype=torch.int64)
                heard.append((lossy.recv_any([1, 2], tensor, "weights/0"), tensor.item()))
        return heard

    heard = on_threads(3, work)[0]
    for source in (1, 2):
        assert [number for peer, number in heard if peer == source] == list(range(20))


# --- over processes --------------------------------------------------------------------------------------------------


def test_both_ends_agree_in_processes() -> None:
    """Nothing hangs, nothing is mixed up, and the same messages are lost as on threads."""

    def ignore(_: dict[str, Any]) -> None:
        pass

    arrived = launch(exchange_with_losses, (P,), LaunchOptions(2, wire=WireOptions("tcp")), ignore)
    assert arrived == on_threads(2, lambda comm: exchange_with_losses(comm, ignore, P))[0]
    assert all(0 < sum(each) < 40 for each in arrived)
