"""The delay line: on a clock that stands still, and between real devices of real hosts."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_clock import FakeClock

from tutti.clock import Clock
from tutti.errors import RunFailed, UserError
from tutti.hosts.delay import DelayLine, Relay, open_tap
from tutti.hosts.namespaces import Namespace, check_tools

REQUIRED = bool(os.environ.get("TUTTI_REQUIRE_HOSTS"))
PATIENCE = 10.0  # seconds

# --- the relay, on a clock that stands still: pairs of sockets stand for the devices ---------------------------------

Rig = tuple[Relay, socket.socket, socket.socket, FakeClock]


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A relay with a delay of 5 ms and room for 100 bytes; what we put into one socket comes out of the other."""
    kinds = [socket.socketpair(type=socket.SOCK_DGRAM) for _ in range(3)]
    with ExitStack() as stack:
        for end in (end for pair in kinds for end in pair):
            end.setblocking(False)
            stack.enter_context(end)
        (control, _), (near, near_device), (far, far_device) = kinds
        clock = FakeClock()
        relay = Relay(control, 0.005, clock)  # type: ignore[arg-type]
        relay.join(near_device.fileno(), far_device.fileno(), 100)
        yield relay, near, far, clock


def take_all(relay: Relay) -> None:
    for device in relay.partner:
        relay.take(device)


def arrived(end: socket.socket) -> list[bytes]:
    frames = []
    try:
        while True:
            frames.append(end.recv(1000))
    except BlockingIOError:
        return frames


def test_a_frame_leaves_when_it_is_due_and_not_before(rig: Rig) -> None:
    relay, near, far, clock = rig
    near.send(b"frame")
    take_all(relay)
    assert relay.pause() == pytest.approx(0.005)
    clock.sleep(0.0049)
    relay.give()
    assert arrived(far) == []
    clock.sleep(0.0002)
    relay.give()
    assert arrived(far) == [b"frame"]
    assert relay.pause() is None
    assert relay.latest == pytest.approx(0.0001)


def test_both_directions_keep_their_order(rig: Rig) -> None:
    relay, near, far, clock = rig
    for number in range(8):
        near.send(b"out%d" % number)
        far.send(b"in%d" % number)
        take_all(relay)
        clock.sleep(0.001)
        relay.give()
    clock.sleep(0.005)
    relay.give()
    assert arrived(far) == [b"out%d" % number for number in range(8)]
    assert arrived(near) == [b"in%d" % number for number in range(8)]


def test_what_exceeds_the_room_is_dropped_in_that_direction_only(rig: Rig) -> None:
    relay, near, far, clock = rig
    for letter in (b"a", b"b", b"c"):
        near.send(40 * letter)
    far.send(100 * b"d")
    take_all(relay)
    clock.sleep(0.005)
    relay.give()
    assert arrived(far) == [40 * b"a", 40 * b"b"]
    assert arrived(near) == [100 * b"d"]
    assert relay.dropped == 1
    near.send(100 * b"e")
    take_all(relay)
    clock.sleep(0.005)
    relay.give()
    assert arrived(far) == [100 * b"e"], "the room is free again when the frames have left"


# --- between hosts ---------------------------------------------------------------------------------------------------


def make_namespace() -> Namespace:
    """A namespace that takes a TAP device, or a test that says why there is none."""
    try:
        check_tools()
        namespace = Namespace.new()
        os.close(open_tap("probe", namespace))
    except UserError as reason:
        if REQUIRED:
            raise
        pytest.skip(str(reason))
    return namespace


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    namespace = make_namespace()
    yield namespace
    namespace.close()


@pytest.fixture
def line() -> Iterator[DelayLine]:
    line = DelayLine(0.001)
    yield line
    line.close()


class Hosts:
    """Two hosts, 10.9.0.1 and 10.9.0.2, each at the end of a line of its own to a common switch."""

    def __init__(self, delay: float, rate: float | None = None) -> None:
        self.switch, *self.hosts = (make_namespace() for _ in range(3))
        self.line = DelayLine(delay)
        self.switch.ip("link add bridge type bridge forward_delay 0", "link set bridge up")
        for number, host in enumerate(self.hosts, 1):
            port = f"port{number}"
            self.line.join((host, "eth0"), (self.switch, port), rate, burst=32 * 1024)
            self.switch.ip(f"link set {port} master bridge", f"link set {port} up")
            host.ip(f"address add 10.9.0.{number}/24 dev eth0", "link set eth0 up")
            for where, device in ((host, "eth0"), (self.switch, port)) if rate else ():
                where.tc(f"qdisc add dev {device} root tbf rate {rate:.0f}bit burst 32kb limit 1mb")

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()
        for namespace in (self.switch, *self.hosts):
            namespace.close()

    def udp(self, number: int) -> socket.socket:
        def make() -> socket.socket:
            end = socket.socket(type=socket.SOCK_DGRAM)
            end.settimeout(PATIENCE)
            end.bind((f"10.9.0.{number}", 7000))
            return end

        return self.hosts[number - 1].run(make)

    def tcp(self) -> tuple[socket.socket, socket.socket]:
        """Host 1's end and host 2's."""
        with self.hosts[1].run(lambda: socket.create_server(("10.9.0.2", 7000))) as server:
            near = self.hosts[0].run(lambda: socket.create_connection(("10.9.0.2", 7000), PATIENCE))
            far, _ = server.accept()
        far.settimeout(PATIENCE)
        return near, far


def echo(end: socket.socket, times: int) -> None:
    for _ in range(times):
        data, sender = end.recvfrom(100)
        end.sendto(data, sender)


def in_background(function: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("delay", [0.002, 0.01])
def test_a_round_trip_passes_four_delays(delay: float) -> None:
    clock, times = Clock(), []
    with Hosts(delay) as hosts, hosts.udp(1) as near, hosts.udp(2) as far:
        other = in_background(echo, far, 31)
        for _ in range(31):
            begun = clock.now()
            near.sendto(b"ping", ("10.9.0.2", 7000))
            assert near.recv(100) == b"ping"
            times.append(clock.now() - begun)
        other.join(PATIENCE)
    assert min(times) >= 4 * delay
    undisturbed = sorted(times)[3]  # on a busy machine it is the echo that comes late
    assert undisturbed <= 4 * delay * 1.1 + 0.0005


def test_datagrams_keep_their_order() -> None:
    with Hosts(0.005) as hosts, hosts.udp(1) as near, hosts.udp(2) as far:
        near.sendto(b"hello", ("10.9.0.2", 7000))  # so that the address is known and nothing waits for it
        assert far.recv(100) == b"hello"
        for number in range(100):
            near.sendto(b"%d" % number, ("10.9.0.2", 7000))
        assert [int(far.recv(100)) for _ in range(100)] == list(range(100))


def test_a_stream_arrives_intact_in_large_frames_and_at_the_rate() -> None:
    data = os.urandom(5_000_000)
    with Hosts(0.005, rate=50e6) as hosts:
        near, far = hosts.tcp()
        with near, far:
            in_background(near.sendall, data)
            digest, rate = drain(far, len(data))
        tally = hosts.line.tally()
    assert digest == hashlib.sha256(data).hexdigest()
    assert rate > 0.9 * 50e6
    assert tally.dropped == 0
    assert 1448 * tally.frames / 2 < len(data), "frames were cut to ethernet's size, and every answer counts too"


def drain(end: socket.socket, length: int) -> tuple[str, float]:
    """The digest of so many bytes, and at how many bits per second the fastest quarter came, the first left out."""
    clock, digest, count = Clock(), hashlib.sha256(), 0
    quarters: list[float] = []
    while count < length:
        piece = end.recv(1 << 16)
        assert piece
        digest.update(piece)
        count += len(piece)
        if 4 * count >= length * (len(quarters) + 1):
            quarters.append(clock.now())
    shortest = min(later - sooner for sooner, later in itertools.pairwise(quarters))
    return digest.hexdigest(), 8 * length / 4 / shortest


# --- beginnings and ends ---------------------------------------------------------------------------------------------


def devices(namespace: Namespace) -> set[str]:
    return namespace.run(lambda: {name for _, name in socket.if_nameindex()}) - {"lo"}


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody may be there to bury an orphan


def seconds_of_cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until(condition: Callable[[], bool]) -> None:
    clock = Clock()
    give_up = clock.now() + PATIENCE
    while not condition():
        assert clock.now() < give_up
        clock.sleep(0.01)


def test_after_close_neither_process_nor_devices_are_left(namespace: Namespace, line: DelayLine) -> None:
    line.join((namespace, "one"), (namespace, "two"))
    assert devices(namespace) == {"one", "two"}
    line.close()
    assert not alive(line.pid)
    assert devices(namespace) == set()


def test_the_line_ends_with_the_process_that_made_it(namespace: Namespace) -> None:
    program = (
        "import os, sys; from tutti.hosts.delay import DelayLine; from tutti.hosts.namespaces import Namespace\n"
        "where = Namespace(os.open(sys.argv[1], os.O_RDONLY))\n"
        "line = DelayLine(0.001); line.join((where, 'one'), (where, 'two'))\n"
        "print(line.pid, flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, namespace.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        line = int(maker.stdout.readline())
        assert alive(line)
        assert devices(namespace) == {"one", "two"}
        maker.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(line))
    assert devices(namespace) == set()


def test_a_line_that_was_killed_says_so_when_asked(line: DelayLine) -> None:
    os.kill(line.pid, signal.SIGKILL)
    with pytest.raises(RunFailed, match="has ended"):
        line.tally()


def test_a_device_that_was_deleted_is_let_go(namespace: Namespace, line: DelayLine) -> None:
    line.join((namespace, "one"), (namespace, "two"))
    namespace.ip("link delete one")
    line.tally()
    before = seconds_of_cpu(line.pid)
    Clock().sleep(0.3)
    assert seconds_of_cpu(line.pid) - before < 0.1, "it looks at what is gone again and again"


def test_a_failed_join_leaves_no_device(namespace: Namespace, line: DelayLine) -> None:
    with pytest.raises(OSError, match="busy") as refused:
        line.join((namespace, "one"), (namespace, "one"))
    assert refused.value.errno == errno.EBUSY
    assert devices(namespace) == set()


@pytest.mark.parametrize("reason", [errno.ENOENT, errno.EACCES])
def test_without_devices_a_sentence_says_what_latency_needs(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    really_open = os.open

    def refuse(path: str, flags: int) -> int:
        if path == "/dev/net/tun":
            raise OSError(reason, os.strerror(reason))
        return really_open(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError) as refused:
        open_tap("eth0", namespace)
    assert str(refused.value) == (
        f"latency needs netem in the kernel or /dev/net/tun; this machine has neither ({os.strerror(reason)})"
    )


def test_the_process_imports_nothing_heavy() -> None:
    program = "import sys, tutti.hosts.delay; print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"


def test_an_ordinary_user_gets_a_line_from_a_user_namespace() -> None:
    """Root runs one test in there (where the kernel grants no priority), anybody else all that need hosts."""
    enter = ["unshare", "--user", "--map-root-user", "--net"]
    root = os.geteuid() == 0
    if subprocess.run([*enter, "true"], capture_output=True).returncode != 0:
        assert root or not REQUIRED, "neither root nor user namespaces"
        pytest.skip("this machine refuses user namespaces")
    tests = ["-k", "round_trip" if root else "not ordinary_user"]
    done = subprocess.run(
        [*enter, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__, *tests],
        env=os.environ | {"TUTTI_REQUIRE_HOSTS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
