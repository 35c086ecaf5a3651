"""How much the kernel may have under way on a connection, and how it shares a link with others."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tutti.comm import link
from tutti.comm.link import Link, Receive, Send

Pair = tuple[socket.socket, socket.socket]
OPTIONS = {"wmem_max": socket.SO_SNDBUF, "rmem_max": socket.SO_RCVBUF}


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def room(connection: socket.socket) -> list[int]:
    return [connection.getsockopt(socket.SOL_SOCKET, option) for option in OPTIONS.values()]


def test_a_short_way_is_seen_to_be_short(pair: Pair) -> None:
    ours, theirs = pair
    ours.sendall(b".")
    theirs.recv(1)
    assert 0 <= link._round_trip(ours) < 1


def test_where_the_kernel_does_not_tell_the_way_is_long(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(link.socket, "TCP_INFO")
    assert link._round_trip(pair[0]) == math.inf


def test_between_hosts_near_each_other_there_is_much(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as this system allows, or what it was."""
    monkeypatch.setattr(link, "_is_here", lambda _: False)
    monkeypatch.setattr(link, "_round_trip", lambda _: 1e-4)
    before = room(pair[0])
    Link(1, pair[0])
    allowed = [int(Path(f"/proc/sys/net/core/{name}").read_text()) >= link._DEEP for name in OPTIONS]
    for now, was, much in zip(room(pair[0]), before, allowed, strict=True):
        assert now >= link._DEEP if much else now == was


def test_on_one_machine_and_over_a_long_way_it_is_left_alone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    before = room(pair[0]), room(pair[1])
    Link(1, pair[0])
    monkeypatch.setattr(link, "_is_here", lambda _: False)
    monkeypatch.setattr(link, "_round_trip", lambda _: 0.05)
    Link(1, pair[1])
    assert (room(pair[0]), room(pair[1])) == before


def test_where_the_system_allows_little_nothing_is_asked_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    before = room(pair[0])
    monkeypatch.setattr(link, "_DEEP", 2**60)
    link._deepen(pair[0])
    assert room(pair[0]) == before


def control(connection: socket.socket) -> str:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def test_near_hosts_share_a_link_evenly(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the system prefers; on one machine and over a long way that stays."""
    for each in pair:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    Link(1, pair[0])
    assert control(pair[0]) == "reno"
    monkeypatch.setattr(link, "_is_here", lambda _: False)
    monkeypatch.setattr(link, "_round_trip", lambda _: 0.05)
    Link(1, pair[1])
    assert control(pair[1]) == "reno"
    monkeypatch.setattr(link, "_round_trip", lambda _: 1e-4)
    Link(1, pair[1])
    assert control(pair[1]) == "cubic"


@pytest.mark.parametrize("sees", ["one that sends", "one that receives"])
def test_a_way_that_seemed_long_at_first_is_looked_at_again(
    sees: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next message, in whichever direction."""
    monkeypatch.setattr(link, "_is_here", lambda _: False)
    monkeypatch.setattr(link, "_round_trip", lambda _: 0.05)
    pair[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    ours = Link(1, pair[0])

    def message() -> None:
        if sees == "one that sends":
            ours.put(Send(Nobody(), ours, torch.zeros(1), code=1))
        else:
            ours.aim(code=1, length=4)

    message()
    assert control(pair[0]) == "reno"
    monkeypatch.setattr(link, "_round_trip", lambda _: 1e-4)
    message()
    assert control(pair[0]) == "cubic"


class Nobody:
    """Whoever would turn the poll loop."""

    rank = 0

    def drive(self, pending: Send | Receive, deadline: float | None) -> bool:
        raise AssertionError("nobody waits here")

    def look(self) -> None:
        raise AssertionError("nobody looks here")
