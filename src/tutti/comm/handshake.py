"""How the workers of one run find each other and keep strangers out.

Every worker listens on one address (never on all interfaces unasked), publishes it in torch's store and connects to
every lower rank. Both ends prove that they know the run's secret before a single byte is believed:

    acceptor  -> A                                            32 random bytes
    connector -> rank, B, HMAC(secret, "connect" A B mesh rank acceptor)
    acceptor  -> HMAC(secret, "accept" A B mesh rank acceptor)

A fresh A makes a replay worthless. All messages have a fixed length, so garbage is refused after at most 68 bytes, and
a stranger who is silent or floods costs one entry of a bounded table until his deadline. When the mesh is complete the
listening socket is closed. Without TLS the proof covers the beginning of a connection, not each byte after it.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from tutti.clock import Clock
from tutti.comm.base import SILENCE, PeerLost
from tutti.errors import UserError

_NONCE, _PROOF = 32, 32
_HELLO = 4 + _NONCE + _PROOF
_STRANGER_SECONDS = 5.0  # how long an unproven connection may take
_STRANGERS = 128  # how many unproven connections are kept; the oldest goes first


@dataclass(frozen=True)
class Tls:
    """PEM files; every worker shows the certificate and accepts only those that `ca` (or the same one) signed."""

    cert: Path
    key: Path
    ca: Path | None = None

    def context(self, server: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate belongs to the run, not to a host name
        context.verify_mode = ssl.CERT_REQUIRED
        for file in (self.cert, self.key, self.ca or self.cert):
            if not file.is_file():
                raise UserError(f"TLS: there is no file {file}")
        try:
            context.load_cert_chain(self.cert, self.key)
            context.load_verify_locations(self.ca or self.cert)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"TLS: cannot use {self.cert}, {self.key}, {self.ca or self.cert}: {error}") from None
        return context


class Members(NamedTuple):
    """The workers of a run that are not all workers of torch's process group."""

    ranks: tuple[int, ...]  # in that process group
    name: str  # of this meeting, as no other is called

    def of(self, part: str) -> Members:
        """The same workers, for a group of another name."""
        return Members(self.ranks, f"{self.name}/{part}")


@dataclass(frozen=True)
class Access:
    """What a worker needs to join: where to listen, what to prove, how long to wait."""

    address: str
    secret: bytes
    tls: Tls | None = None
    timeout: float = SILENCE
    members: Members | None = None


def build_mesh(
    rank: int, size: int, store: dist.Store, mesh: str, access: Access, clock: Clock
) -> dict[int, socket.socket]:
    """One proven, non-blocking connection to every other worker."""
    if size == 1:
        return {}
    family = socket.AF_INET6 if ":" in access.address else socket.AF_INET
    try:
        listener = socket.create_server((access.address, 0), family=family, backlog=512)
    except OSError as error:
        raise UserError(f"cannot listen on {access.address}: {error.strerror}") from None
    with listener:
        port = listener.getsockname()[1]
        store.set(f"{mesh}/{rank}", f"{access.address} {port}")
        proof = _Prover(access.secret, mesh)
        deadline = clock.now() + access.timeout
        links: dict[int, socket.socket] = {}
        try:
            for peer in range(rank):
                links[peer] = _connect(rank, peer, store, mesh, access, proof, clock)
            _Door(rank, size, listener, access, proof, clock).admit(links, deadline)
        except BaseException:
            for link in links.values():
                link.close()
            raise
    for link in links.values():
        link.setblocking(False)
    return links


def new_secret() -> bytes:
    """A secret for one run."""
    return os.urandom(32)


class _Prover:
    def __init__(self, secret: bytes, mesh: str) -> None:
        self._secret, self._mesh = secret, mesh.encode()

    def __call__(self, role: bytes, first: bytes, second: bytes, connector: int, acceptor: int) -> bytes:
        text = b"|".join([role, first, second, self._mesh, b"%d" % connector, b"%d" % acceptor])
        return hmac.digest(self._secret, text, "sha256")


# --- the connecting side ---------------------------------------------------------------------------------------------


def _connect(
    rank: int, peer: int, store: dist.Store, mesh: str, access: Access, proof: _Prover, clock: Clock
) -> socket.socket:
    """Try until the deadline: a flooded door may drop a worker, who then comes again."""
    deadline = clock.now() + access.timeout
    try:
        store.wait([f"{mesh}/{peer}"], timedelta(seconds=access.timeout))
        host, port = store.get(f"{mesh}/{peer}").decode().split()
    except (RuntimeError, ValueError):
        raise PeerLost(f"worker {peer} did not arrive within {access.timeout:g} s", peer) from None
    context = access.tls.context(server=False) if access.tls else None
    why = "it did not answer"
    while (left := deadline - clock.now()) > 0:
        connection = None
        try:
            connection = socket.create_connection((host, int(port)), timeout=min(left, 10.0))
            if context is not None:
                connection = context.wrap_socket(connection)
            if _introduce(connection, rank, peer, proof):
                return connection
            why = "the two did not prove to each other that they know the same secret"
        except TimeoutError:
            pass  # the last attempt is cut short, and what an earlier one said tells more
        except (OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        if connection is not None:
            connection.close()
        clock.sleep(0.05)
    where = f"{host}:{port} within {access.timeout:g} s"
    raise PeerLost(f"worker {rank} could not reach worker {peer} at {where}: {why}", peer)


def _introduce(connection: socket.socket, rank: int, peer: int, proof: _Prover) -> bool:
    first = _read_exactly(connection, _NONCE)
    second = os.urandom(_NONCE)
    connection.sendall(struct.pack("<I", rank) + second + proof(b"connect", first, second, rank, peer))
    try:
        answer = _read_exactly(connection, _PROOF)
    except ConnectionError:  # refused
        return False
    return hmac.compare_digest(answer, proof(b"accept", first, second, rank, peer))


def _read_exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise ConnectionResetError("it closed the connection")
        data += more
    return data


# --- the accepting side ----------------------------------------------------------------------------------------------


class _Visitor:
    """A connection that has not proven anything yet."""

    def __init__(self, connection: socket.socket, leaves_at: float) -> None:
        self.connection, self.leaves_at = connection, leaves_at
        self.nonce, self.greeted, self.data = os.urandom(_NONCE), False, b""


class _Door:
    """Admits every higher rank exactly once, whoever else is knocking."""

    def __init__(
        self, rank: int, size: int, listener: socket.socket, access: Access, proof: _Prover, clock: Clock
    ) -> None:
        self._rank, self._size, self._listener, self._proof, self._clock = rank, size, listener, proof, clock
        self._context = access.tls.context(server=True) if access.tls else None
        self._timeout = access.timeout
        self._visitors: dict[int, _Visitor] = {}
        self._admitted: dict[int, socket.socket] = {}
        self._unproven = 0  # how many had another secret or certificate

    def admit(self, links: dict[int, socket.socket], deadline: float) -> None:
        """Add a link to every higher rank."""
        self._admitted = links
        self._listener.setblocking(False)
        try:
            while missing := [rank for rank in range(self._rank + 1, self._size) if rank not in links]:
                if self._clock.now() > deadline:
                    raise self._late(missing[0])
                for fd in self._ready():
                    if fd == self._listener.fileno():
                        self._welcome()
                    elif fd in self._visitors:
                        self._listen(self._visitors[fd])
                self._expire()
        finally:
            for visitor in list(self._visitors.values()):
                self._refuse(visitor)

    def _late(self, missing: int) -> PeerLost:
        text = f"worker {missing} did not arrive within {self._timeout:g} s"
        if self._unproven:
            text += f": {self._unproven} who knocked had another secret or certificate than this run"
        return PeerLost(text, missing)

    def _ready(self) -> list[int]:
        poller = select.poll()
        for fd in (self._listener.fileno(), *self._visitors):
            poller.register(fd, select.POLLIN)
        return [fd for fd, _ in poller.poll(100)]

    def _welcome(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        try:
            connection.getpeername()  # fails for one who is gone again, whom TLS cannot be begun with
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError:
            connection.close()
            return
        visitor = _Visitor(connection, self._clock.now() + _STRANGER_SECONDS)
        self._visitors[connection.fileno()] = visitor
        if len(self._visitors) > _STRANGERS:
            self._refuse(next(iter(self._visitors.values())))
        self._listen(visitor)

    def _listen(self, visitor: _Visitor) -> None:
        """Take the visitor as far as his bytes allow: TLS, the greeting, his proof."""
        connection = visitor.connection
        try:
            if not visitor.greeted:
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()
                connection.send(visitor.nonce)
                visitor.greeted = True
            data = connection.recv(_HELLO - len(visitor.data))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._unproven += isinstance(error, ssl.SSLError)
            self._refuse(visitor)
            return
        visitor.data += data
        if not data:
            self._refuse(visitor)
        elif len(visitor.data) == _HELLO:
            self._judge(visitor)

    def _judge(self, visitor: _Visitor) -> None:
        (peer,) = struct.unpack_from("<I", visitor.data)
        second, claim = visitor.data[4 : 4 + _NONCE], visitor.data[4 + _NONCE :]
        good = hmac.compare_digest(claim, self._proof(b"connect", visitor.nonce, second, peer, self._rank))
        self._unproven += not good
        if not good or not self._rank < peer < self._size or peer in self._admitted:
            self._refuse(visitor)
            return
        try:
            visitor.connection.send(self._proof(b"accept", visitor.nonce, second, peer, self._rank))
        except OSError:  # gone again; he may come once more
            self._refuse(visitor)
            return
        del self._visitors[visitor.connection.fileno()]
        self._admitted[peer] = visitor.connection

    def _expire(self) -> None:
        now = self._clock.now()
        for visitor in [v for v in self._visitors.values() if v.leaves_at < now]:
            self._refuse(visitor)

    def _refuse(self, visitor: _Visitor) -> None:
        self._visitors.pop(visitor.connection.fileno(), None)
        visitor.connection.close()


# --- addresses -------------------------------------------------------------------------------------------------------


def find_address(interface: str | None, master: str) -> str:
    """The address to listen on: that of the interface given, or of the one that leads to the master."""
    if interface is not None:
        return _address_of(interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, 9))  # sends nothing: it only asks the routing table
            return str(probe.getsockname()[0])
        except OSError as error:
            raise UserError(
                f"cannot find the interface that leads to {master}: {error}; give one with --interface"
            ) from None


def _address_of(interface: str) -> str:
    known = [name for _, name in socket.if_nameindex()]
    if interface not in known:
        if interface in ("0.0.0.0", "::"):
            raise UserError(
                f"{interface} means every interface, and nobody is reached at it; give one of {', '.join(known)}"
            )
        if _is_address(interface):
            return interface
        raise UserError(f"there is no interface '{interface}'; there is {', '.join(known)}, or give an address")
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", interface.encode()[:15]))  # SIOCGIFADDR
        except OSError:
            raise UserError(f"interface '{interface}' has no IPv4 address; give an address instead") from None
    return socket.inet_ntoa(answer[20:24])


def _is_address(text: str) -> bool:
    check: Callable[[int, str], bytes] = socket.inet_pton
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            check(family, text)
            return True
        except OSError:
            continue
    return False
