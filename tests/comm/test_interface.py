"""An interface's counter is the kernel's, of the namespace that the asking thread is in."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hosts_here import needs_hosts, run_inside

from tutti.comm.interface import read_sent


def test_what_is_sent_is_counted() -> None:
    before = read_sent("lo")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as caller:
        answer, _ = server.accept()
        with answer:
            caller.sendall(bytes(50_000))
            received = 0
            while received < 50_000:
                received += len(answer.recv(50_000))
    assert read_sent("lo") - before >= 50_000


def test_it_is_the_counter_of_what_was_sent() -> None:
    """Between two looks at the kernel's own; what came in has another."""
    for name in (path.name for path in Path("/sys/class/net").iterdir()):
        counter = Path(f"/sys/class/net/{name}/statistics/tx_bytes")
        before, found, after = int(counter.read_text()), read_sent(name), int(counter.read_text())
        assert before <= found <= after


def test_an_interface_that_is_not_there_is_an_error() -> None:
    for name in ("nowhere0", "l", "", "Inter-|   Receive"):
        with pytest.raises(LookupError, match=f"there is no interface {name[:5]}"):
            read_sent(name)


@needs_hosts
def test_every_thread_reads_where_it_is() -> None:
    result = run_inside("""
        import socket
        from tutti.comm.interface import read_sent
        from tutti.hosts.links import Wiring

        with Wiring([None, None]) as wiring:
            ends = [host.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for host in wiring.hosts]
            ends[1].bind((wiring.address_of(1), 9))
            for _ in range(10):
                ends[0].sendto(bytes(1000), (wiring.address_of(1), 9))
            result = [host.run(lambda: read_sent("eth0")) for host in wiring.hosts]
            try:
                result.append(read_sent("eth0"))
            except LookupError as error:
                result.append(str(error))
    """)
    first, second, outside = result
    assert 10 * 1042 <= first < 11_000, "ten frames with their headers, and the question who has the address"
    assert second < 1000
    assert outside == "there is no interface eth0"
