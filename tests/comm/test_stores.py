"""A store for several machines: where it listens, and what cannot be listened on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tutti.comm import stores
from tutti.comm.stores import host_store
from tutti.errors import UserError


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def listens_on(port: int) -> set[str]:
    """The addresses, as hexadecimal digits, on which anybody listens at this port."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {row[1].partition(":")[0] for row in lines if row[3] == "0A" and row[1].endswith(f":{port:04X}")}


@pytest.mark.parametrize("interface", [None, "lo"])
def test_it_listens_on_one_address(interface: str | None) -> None:
    port = free_port()
    store = host_store("localhost", port, interface, 5.0)
    store.set("key", "value")
    assert listens_on(port) == {"0100007F"}


@pytest.mark.parametrize(
    ("master", "sentence"),
    [
        ("192.0.2.7", r"^cannot listen on 192\.0\.2\.7, .*give an address of this machine, or --interface$"),
        ("0.0.0.0", r"^0\.0\.0\.0 means every interface; give the address of one"),
        ("no.such.host.invalid", r"^cannot find the address of the master no\.such\.host\.invalid"),
    ],
)
def test_what_cannot_be_gets_a_sentence(master: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        host_store(master, 1, None, 5.0)


def test_a_name_that_means_loopback_means_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian writes a machine's own name into /etc/hosts."""
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    monkeypatch.setattr(stores, "find_address", lambda _, master: f"way to {master}")
    assert stores._find_listening_address("node1", None) == "way to 192.0.2.1"
    assert stores._find_listening_address("127.0.1.1", None) == "127.0.1.1"
