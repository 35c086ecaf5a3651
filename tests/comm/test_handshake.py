"""Who gets in, who does not, and what a worker hears when the others do not come."""

from __future__ import annotations

import gc
import os
import re
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from workers import make_tls, on_tcp, side_by_side

from tutti.comm.base import Clock, Comm, PeerLost
from tutti.comm.handshake import _STRANGERS, Access, Tls, _introduce, _Prover, build_mesh, find_address
from tutti.comm.tcp import TcpComm
from tutti.errors import UserError

SECRET = b"known to all"


class Door:
    """Worker 0 waiting for the others, on a thread; who comes to it and who got in."""

    def __init__(self, size: int = 2, clock: Clock | None = None, **access: Any) -> None:
        self.store, self.size, self.clock = dist.HashStore(), size, clock or Clock()
        self.access = Access(**{"address": "127.0.0.1", "secret": SECRET, "timeout": 20.0} | access)
        self.inside: dict[int, socket.socket] = {}
        self._outside: list[socket.socket] = []
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def __enter__(self) -> Door:
        self._thread.start()
        host, port = self.store.get("main/0").decode().split()
        self.address = (host, int(port))
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (*self._outside, *self.inside.values()):
            connection.close()

    def _wait(self) -> None:
        self.inside = build_mesh(0, self.size, self.store, "main", self.access, self.clock)

    def knock(self) -> socket.socket:
        self._outside.append(socket.create_connection(self.address, timeout=10))
        return self._outside[-1]

    def enter(self, rank: int, secret: bytes = SECRET, mesh: str = "main", acceptor: int = 0) -> bool:
        """Whether somebody who says he is this worker, and proves it so, is let in."""
        connection = self.knock()
        if self.access.tls:
            connection = self._outside[-1] = self.access.tls.context(server=False).wrap_socket(connection)
        try:
            return _introduce(connection, rank, acceptor, _Prover(secret, mesh))
        except OSError:
            return False

    def completes_with(self, *ranks: int) -> bool:
        """Whether the missing workers get in, and nobody else was taken for one."""
        still_open = self._thread.is_alive()
        entered = [self.enter(rank) for rank in ranks]
        self._thread.join(10)
        return still_open and all(entered) and sorted(self.inside) == list(range(1, self.size))


def hung_up(connection: socket.socket) -> bool:
    """Whether the other side ends the connection (a greeting may come first)."""
    try:
        while connection.recv(100):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def reset(connection: socket.socket) -> None:
    """End it without a goodbye."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


# --- strangers -------------------------------------------------------------------------------------------------------


def test_silent_stranger_is_sent_away_when_the_mesh_is_complete() -> None:
    with Door() as door:
        stranger = door.knock()
        assert door.completes_with(1)
        assert hung_up(stranger)


class Pushed(Clock):
    """The real time and what was added."""

    extra = 0.0

    def now(self) -> float:
        return super().now() + self.extra


def test_silent_stranger_is_sent_away_after_a_while() -> None:
    clock = Pushed()
    with Door(clock=clock) as door:
        stranger = door.knock()
        assert len(stranger.recv(32)) == 32
        clock.extra = 6.0
        assert hung_up(stranger)
        assert door.completes_with(1)


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n" * 3, bytes(68), bytes(10**6), struct.pack("<I", 1) + os.urandom(64)],
    ids=["http", "zeros", "a lot", "rank without proof"],
)
def test_garbage_is_refused(words: bytes) -> None:
    with Door() as door:
        stranger = door.knock()
        with suppress(OSError):  # refused before all of it was out
            stranger.sendall(words)
        assert hung_up(stranger)
        assert door.completes_with(1)


def test_strangers_who_end_at_once_disturb_nobody() -> None:
    with Door() as door:
        for _ in range(20):
            reset(door.knock())
        assert door.completes_with(1)


class Recorder:
    """A connection that keeps what was sent over it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.sent = connection, b""

    def recv(self, length: int) -> bytes:
        return self._connection.recv(length)

    def sendall(self, data: bytes) -> None:
        self.sent += data
        self._connection.sendall(data)


def test_recorded_hello_is_worthless() -> None:
    """What let worker 1 in once is refused at another door of the same run and mesh, and again at this one."""
    with Door(size=3) as first, Door(size=3) as second:
        recorder = Recorder(first.knock())
        assert _introduce(recorder, 1, 0, _Prover(SECRET, "main"))  # type: ignore[arg-type]
        for door in (first, second):
            thief = door.knock()
            thief.sendall(recorder.sent)
            assert hung_up(thief)
        assert first.completes_with(2)
        assert second.completes_with(1, 2)


@pytest.mark.parametrize(
    "claim",
    [
        {"rank": 1, "secret": b"guessed"},
        {"rank": 0},
        {"rank": 2},
        {"rank": 1, "mesh": "main/lane"},
        {"rank": 1, "acceptor": 5},
    ],
    ids=["wrong secret", "worker 0 itself", "rank beyond the last", "for another mesh", "for another worker"],
)
def test_false_claim_is_refused(claim: dict[str, Any]) -> None:
    with Door() as door:
        assert not door.enter(**claim)
        assert door.completes_with(1)


def test_every_worker_enters_once() -> None:
    with Door(size=3) as door:
        assert door.enter(1)
        assert not door.enter(1)
        assert door.completes_with(2)


class Standing(Clock):
    """No stranger's time is ever over."""

    def now(self) -> float:
        return 0.0


def test_flood_of_connections() -> None:
    """500 strangers while the mesh forms: only so many are kept, the workers get in, all strangers are refused."""
    with Door(size=3, clock=Standing()) as door:
        strangers = [door.knock() for _ in range(500)]
        assert all(map(hung_up, strangers[:-_STRANGERS]))
        assert door.completes_with(1, 2)
        assert all(map(hung_up, strangers[-_STRANGERS:]))


def test_flood_while_real_workers_meet() -> None:
    """The same with workers who arrive in the middle of it, and may have to come twice."""
    store, stop = dist.HashStore(), threading.Event()
    strangers: list[socket.socket] = []

    def flood() -> None:
        host, port = store.get("main/0").decode().split()
        while not stop.is_set() and len(strangers) < 500:
            try:
                strangers.append(socket.create_connection((host, int(port)), timeout=10))
            except OSError:
                return  # the mesh is complete

    flooding = threading.Thread(target=flood)
    flooding.start()

    def work(rank: int) -> float:
        comm = TcpComm(rank, 3, store, Access("127.0.0.1", SECRET, timeout=20.0))
        total = torch.tensor([float(rank)])
        comm.all_reduce(total)
        comm.close()
        return total.item()

    assert side_by_side(3, work) == [3.0] * 3
    stop.set()
    flooding.join()
    for stranger in strangers:
        with stranger, suppress(OSError):
            stranger.send(b"?")  # who knocked at the very end was forgotten by the kernel, and hears of it only so
            assert hung_up(stranger)


def test_listening_ends_with_the_mesh() -> None:
    with Door() as door:
        assert door.completes_with(1)
        with pytest.raises(ConnectionRefusedError):
            door.knock()


def test_worker_that_cannot_prove_itself_is_not_believed() -> None:
    """The connecting side asks for a proof too: a stranger at the published address gets nothing."""
    store = dist.HashStore()
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        store.set("main/0", f"127.0.0.1 {impostor.getsockname()[1]}")

        def deceive() -> None:
            impostor.settimeout(5)
            while True:
                try:
                    connection, _ = impostor.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(bytes(32))
                    connection.recv(68)
                    connection.sendall(bytes(32))

        deceiving = threading.Thread(target=deceive)
        deceiving.start()
        with pytest.raises(PeerLost, match=r"could not reach worker 0 at 127\.0\.0\.1:\d+ within 0\.5 s: .*secret"):
            build_mesh(1, 2, store, "main", Access("127.0.0.1", SECRET, timeout=0.5), Clock())
        impostor.shutdown(socket.SHUT_RDWR)
        deceiving.join()


# --- errors ----------------------------------------------------------------------------------------------------------


def errors_of(size: int, access_of: Callable[[int], Access], present: list[int] | None = None) -> list[str]:
    """What the workers hear when the mesh cannot form."""
    store = dist.HashStore()

    def meet(rank: int) -> str:
        if present is not None and rank not in present:
            return ""
        begun = time.perf_counter()
        with pytest.raises(PeerLost) as caught:
            build_mesh(rank, size, store, "main", access_of(rank), Clock())
        assert time.perf_counter() - begun < 10
        return str(caught.value)

    heard = side_by_side(size, meet)
    gc.collect()  # a socket that was left open warns now, and warnings are errors
    return heard


def test_wrong_secret_is_named_on_both_sides() -> None:
    heard = errors_of(2, lambda rank: Access("127.0.0.1", b"secret %d" % rank, timeout=0.5))
    assert "worker 1 did not arrive within 0.5 s" in heard[0]
    assert "secret" in heard[0]
    assert "worker 1 could not reach worker 0" in heard[1]
    assert "secret" in heard[1]


@pytest.mark.parametrize(("present", "missing"), [(0, 1), (1, 0)])
def test_missing_worker_is_named_within_the_timeout(present: int, missing: int) -> None:
    heard = errors_of(2, lambda _: Access("127.0.0.1", SECRET, timeout=0.3), present=[present])
    assert heard[present] == f"worker {missing} did not arrive within 0.3 s"


def test_workers_that_did_come_are_let_go_when_one_is_missing() -> None:
    heard = errors_of(3, lambda _: Access("127.0.0.1", SECRET, timeout=0.4), present=[0, 1])
    assert heard[:2] == ["worker 2 did not arrive within 0.4 s"] * 2


def test_address_of_another_machine() -> None:
    with pytest.raises(UserError, match=r"cannot listen on 192\.0\.2\.1"):
        build_mesh(0, 2, dist.HashStore(), "main", Access("192.0.2.1", SECRET), Clock())


# --- addresses -------------------------------------------------------------------------------------------------------


def listening() -> set[tuple[str, int]]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {(row[1].split(":")[0], int(row[1].split(":")[1], 16)) for row in rows if row[3] == "0A"}


def test_bound_to_one_address_only() -> None:
    with Door() as door:
        assert [host for host, port in listening() if port == door.address[1]] == ["0100007F"]
        assert door.completes_with(1)


def test_own_interface() -> None:
    assert find_address("lo", "192.0.2.1") == "127.0.0.1"


def test_interface_that_leads_to_the_master() -> None:
    assert find_address(None, "127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("address", ["127.0.0.5", "::1"])
def test_address_instead_of_an_interface(address: str) -> None:
    assert find_address(address, "192.0.2.1") == address


def test_unknown_interface() -> None:
    with pytest.raises(UserError, match=r"there is no interface 'eth99'; there is .*\blo\b.*or give an address"):
        find_address("eth99", "127.0.0.1")


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_all_interfaces_are_refused(address: str) -> None:
    with pytest.raises(UserError, match="every interface"):
        find_address(address, "127.0.0.1")


def test_unknown_master() -> None:
    with pytest.raises(UserError, match=r"leads to no-such-host\.invalid.*--interface"):
        find_address(None, "no-such-host.invalid")


def total_over(comm: Comm) -> float:
    total = torch.tensor([float(comm.rank)])
    comm.all_reduce(total)
    return total.item()


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_mesh_over_ipv6() -> None:
    assert on_tcp(3, total_over, address="::1") == [3.0] * 3


# --- TLS -------------------------------------------------------------------------------------------------------------


def signed_by(ca: Tls, folder: Path, name: str) -> Tls:
    """A certificate for one worker, signed by the run's authority."""
    tls = Tls(folder / f"{name}.cert", folder / f"{name}.key", ca.cert)
    request = folder / f"{name}.csr"
    new = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj"
    sign = "openssl x509 -req -days 2 -set_serial 7"
    for command in (
        [*new.split(), f"/CN={name}", "-keyout", tls.key, "-out", request],
        [*sign.split(), "-in", request, "-CA", ca.cert, "-CAkey", ca.key, "-out", tls.cert],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return tls


def test_certificates_signed_by_one_authority(tmp_path: Path) -> None:
    ca = make_tls(tmp_path, "authority")
    own = [signed_by(ca, tmp_path, f"worker{rank}") for rank in range(2)]
    store = dist.HashStore()

    def work(rank: int) -> float:
        comm = TcpComm(rank, 2, store, Access("127.0.0.1", SECRET, own[rank], timeout=20.0))
        total = total_over(comm)
        comm.close()
        return total

    assert side_by_side(2, work) == [1.0, 1.0]


@pytest.mark.parametrize("stranger", [0, 1])
def test_foreign_certificate_is_refused(stranger: int, tmp_path: Path) -> None:
    ours, foreign = make_tls(tmp_path, "ours"), make_tls(tmp_path, "foreign")
    heard = errors_of(2, lambda rank: Access("127.0.0.1", SECRET, foreign if rank == stranger else ours, timeout=1.0))
    assert re.match(r"worker 1 did not arrive within 1 s: \d+ who knocked had another secret or certificate", heard[0])
    assert "worker 1 could not reach worker 0" in heard[1]


def test_no_certificate_at_all_is_refused(tmp_path: Path) -> None:
    with Door(tls=make_tls(tmp_path)) as door:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(door.knock()) as stranger:
            assert hung_up(stranger)
        assert door.completes_with(1)


def test_strangers_at_an_encrypted_door(tmp_path: Path) -> None:
    """Silent, garbled, and gone before they are looked at."""
    with Door(tls=make_tls(tmp_path)) as door:
        silent = door.knock()
        for words in (b"", b"hello", bytes(10_000)):
            for _ in range(10):
                stranger = door.knock()
                stranger.send(words)
                reset(stranger)
        assert door.completes_with(1)
        assert hung_up(silent)


def test_missing_file_is_named(tmp_path: Path) -> None:
    tls = Tls(tmp_path / "no.cert", tmp_path / "no.key")
    with pytest.raises(UserError, match=r"TLS: there is no file .*no\.cert"):
        tls.context(server=True)


def test_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    one, other = make_tls(tmp_path, "one"), make_tls(tmp_path, "other")
    with pytest.raises(UserError, match="TLS: cannot use"):
        Tls(one.cert, other.key).context(server=False)
