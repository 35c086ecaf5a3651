"""What is written straight into a peer's memory: it is there, nothing else lands on it, and some do without."""

from __future__ import annotations

import pytest
import torch
from launch_targets import relay_long_buffers
from workers import on_shared, on_threads

from tutti.comm import pipes
from tutti.comm.base import Comm
from tutti.comm.lossy import Lossy
from tutti.comm.pipes import Pipes
from tutti.launch import LaunchOptions, launch

LONG = 300_000  # elements: more than goes at once


def make_landing(comm: Comm) -> torch.Tensor:
    return comm.zeros(LONG, torch.float32, torch.device("cpu"))


def draft(comm: Comm) -> tuple[torch.Tensor, torch.Tensor]:
    """Where to write to the other of two workers, and where lands what it writes."""
    landing = make_landing(comm)
    ((out,),) = comm.drafts([[(1 - comm.rank, landing)]], "weights/0")
    return out, landing


def test_a_draft_is_where_it_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending it moves nothing, and is complete when the other has taken notice."""

    def work(comm: Comm) -> bool:
        out, landing = draft(comm)
        out.fill_(comm.rank + 1)
        comm.barrier()
        there = landing.eq(2 - comm.rank).all()
        monkeypatch.setattr(pipes.ctypes, "memmove", lambda *_: pytest.fail("it is copied"))
        comm.exchange([(1 - comm.rank, out)], [(1 - comm.rank, landing)], "weights/0")
        return bool(there and landing.eq(2 - comm.rank).all())

    assert on_shared(2, work) == [True, True]


def test_nothing_else_lands_on_a_draft() -> None:
    """Neither what comes before it, while it is what is waited for first, nor what is taken from it for another."""

    def work(comm: Comm) -> list[bool]:
        peer, (out, landing), other = 1 - comm.rank, draft(comm), make_landing(comm).fill_(9)
        received = comm.recv(peer, landing, "weights/0")
        out.copy_(torch.arange(LONG) + comm.rank)
        sent = [comm.send(peer, other, "weights/1"), comm.send(peer, torch.ones(5), "weights/2")]
        sent += [comm.send(peer, out, "weights/0"), comm.send(peer, out[:-1], "weights/3")]
        sent += [comm.send(peer, out[1:], "weights/4")]
        received.wait()
        expected = torch.arange(LONG, dtype=torch.float32) + peer
        good = [landing.equal(expected)]
        wanted = (torch.full((LONG,), 9.0), torch.ones(5), expected[:-1], expected[1:])
        for tag, right in zip((1, 2, 3, 4), wanted, strict=True):
            got = torch.zeros_like(right)
            comm.recv(peer, got, f"weights/{tag}").wait()
            good.append(got.equal(right))
        for each in sent:
            each.wait()
        return [*good, landing.equal(expected)]

    assert on_shared(2, work) == [[True] * 6] * 2


def test_a_draft_may_come_before_it_is_waited_for() -> None:
    def work(comm: Comm) -> bool:
        out, landing = draft(comm)
        sent = comm.send(1 - comm.rank, out.fill_(comm.rank + 1), "weights/0")
        comm.barrier()
        comm.recv(1 - comm.rank, landing, "weights/0").wait()
        sent.wait()
        return bool(landing.eq(2 - comm.rank).all())

    assert on_shared(2, work) == [True, True]


def test_what_may_get_lost_is_not_written_where_it_lands() -> None:
    def work(comm: Comm) -> bool:
        out, landing = draft(Lossy(comm, 0.5))
        out.fill_(1)
        comm.barrier()
        return not landing.any()

    assert on_shared(2, work) == [True, True]


def test_where_a_landing_cannot_be_reached_the_draft_is_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for both turns."""
    monkeypatch.setattr(Pipes, "look_out", lambda *_: False)

    def work(comm: Comm) -> tuple[bool, bool]:
        turns = [[(1 - comm.rank, make_landing(comm))] for _ in range(2)]
        (first,), (second,) = comm.drafts(turns, "weights/0")
        first.fill_(comm.rank + 1)
        comm.exchange([(1 - comm.rank, first)], turns[1], "weights/0")
        return first is second, bool(turns[1][0][1].eq(2 - comm.rank).all())

    assert on_shared(2, work) == [(True, True)] * 2


def test_real_processes_relay_what_threads_relay() -> None:
    """Long messages, which are written where they land: bit by bit the same as where they are copied."""
    specs = ("relay(chain)", "relay(star)", "relay(double-binary-tree)")
    there = launch(relay_long_buffers, (specs, LONG), LaunchOptions(4), lambda _: None)
    here = on_threads(4, lambda comm: relay_long_buffers(comm, lambda _: None, specs, LONG))
    assert there == here[0]
