"""Hosts at a switch: who reaches whom, what shapes the links, and that nothing stays."""

from __future__ import annotations

from typing import Any

import pytest
from hosts_here import needs_hosts, run_inside

from tutti.hosts.links import Wiring, _shape

# What a snippet may use: everything that is in its namespace, and what shapes the two ends of a link.
LOOK = """
import json, os, subprocess, time
from tutti.errors import UserError
from tutti.hosts.links import Wiring
from tutti.hosts.namespaces import Namespace, find_tool

def links():
    listed = subprocess.run([find_tool("ip"), "-j", "link"], capture_output=True, text=True, check=True).stdout
    return sorted(link["ifname"] for link in json.loads(listed) if link.get("link_type") != "tunnel")

def settled(wanted):
    "The kernel takes a moment to end a namespace."
    give_up = time.monotonic() + 10
    while links() != wanted and time.monotonic() < give_up:
        time.sleep(0.02)
    return links()

def files():
    return len(os.listdir("/proc/self/fd"))

def shapes(namespace, device):
    queues = json.loads(namespace.ask_tc("-j", "qdisc", "show", "dev", device))
    return [(queue["kind"], 8 * queue["options"]["rate"]) for queue in queues if "rate" in queue["options"]]

before, opened = links(), files()
"""


def look(source: str) -> Any:
    return run_inside(LOOK + source)


# --- what tc is told -------------------------------------------------------------------------------------------------


def test_without_a_rate_and_a_delay_tc_is_told_nothing() -> None:
    assert _shape("eth0", None, 0.0) == []


def test_a_rate_is_a_bucket_at_the_root() -> None:
    assert _shape("eth0", 1e9, 0.0) == [
        "qdisc add dev eth0 root handle 10: tbf rate 1000000000bit burst 125000b limit 2500000b"
    ]


def test_a_delay_is_netem_and_the_rate_comes_behind_it() -> None:
    assert _shape("p", None, 0.0025) == ["qdisc add dev p root handle 1: netem delay 2500us limit 100000"]
    assert _shape("p", 1e8, 0.0025) == [
        "qdisc add dev p root handle 1: netem delay 2500us limit 100000",
        "qdisc add dev p parent 1:1 handle 10: tbf rate 100000000bit burst 32768b limit 262144b",
    ]


@pytest.mark.parametrize("rate", [1e5, 1e6, 1e7, 2e7, 1e8, 1e9, 1e10, 1e11])
def test_a_burst_is_short_and_a_queue_neither_too_short_nor_too_long(rate: float) -> None:
    (command,) = _shape("eth0", rate, 0.0)
    words = command.split()
    burst, queue = (int(words[words.index(word) + 1].removesuffix("b")) for word in ("burst", "limit"))
    assert burst >= 32768, "a frame of 64 KiB is cut up, but not into crumbs"
    assert burst == 32768 or burst == pytest.approx(rate / 8 * 1e-3)
    assert queue >= max(burst, rate / 8 * 0.02)
    assert queue == 32768 or queue <= rate / 8 * 0.2 + 1


# --- the wiring ------------------------------------------------------------------------------------------------------


def test_addresses_are_apart() -> None:
    one, other = Wiring([None] * 200), Wiring([None])
    addresses = [one.address, *(one.address_of(host) for host in range(200)), other.address, other.address_of(0)]
    assert len(set(addresses)) == 203
    assert one.port(0) != other.port(0)
    assert len(one.port(199)) <= 15, "longer than an interface's name may be"


@needs_hosts
def test_hosts_reach_each_other_and_the_switch() -> None:
    result = look("""
import socket
with Wiring([None, 50e6, None]) as wiring, Wiring([None]) as other:
    places = [(host, wiring.address_of(index)) for index, host in enumerate(wiring.hosts)]
    places.append((wiring.switch, wiring.address))
    servers = [namespace.run(lambda: socket.create_server((address, 0))) for namespace, address in places]
    result = []
    for caller, (namespace, own) in enumerate(places):
        for server, (_, address) in zip(servers, places):
            if address != own:
                connection = namespace.run(lambda: socket.create_connection(server.getsockname(), timeout=10))
                result.append([own, server.accept()[1][0]])
    try:
        other.hosts[0].run(lambda: socket.create_connection(servers[0].getsockname(), timeout=1))
    except OSError as error:
        result.append(type(error).__name__)
""")
    *calls, stranger = result
    assert len(calls) == 4 * 3
    assert all(caller == seen for caller, seen in calls)
    assert stranger == "OSError", "another wiring's host has no way here"


@needs_hosts
def test_both_ends_of_a_link_have_its_rate() -> None:
    result = look("""
with Wiring([20e6, None, 5e6]) as wiring:
    ends = [(host, "eth0", wiring.port(index)) for index, host in enumerate(wiring.hosts)]
    result = [[shapes(host, device), shapes(wiring.switch, port)] for host, device, port in ends]
""")
    assert result == [[[["tbf", 20e6]], [["tbf", 20e6]]], [[], []], [[["tbf", 5e6]], [["tbf", 5e6]]]]


@needs_hosts
def test_everything_is_taken_down() -> None:
    result = look("""
with Wiring([20e6, None]) as wiring:
    during = links()
left, still_open = settled(before), files()
with Wiring([20e6]):
    pass  # and again
result = [during, before == left == settled(before), opened == still_open == files(), wiring.label]
""")
    during, gone, closed, label = result
    assert {label, f"{label}p0", f"{label}p1"} <= set(during)
    assert gone
    assert closed


@needs_hosts
@pytest.mark.parametrize("broken", ["Wiring([20e6, -1.0, None])", "Wiring([None] * 2 + [1e-9])"])
def test_an_error_in_the_middle_leaves_nothing(broken: str) -> None:
    result = look(f"""
try:
    with {broken}:
        said = ""
except UserError as error:
    said = str(error)
result = [said, before == settled(before), opened == files()]
""")
    said, gone, closed = result
    assert said.startswith("tc refused to set up the hosts: ")
    assert gone
    assert closed


@needs_hosts
def test_an_interruption_in_the_middle_leaves_nothing() -> None:
    result = look("""
def interrupt(*_):
    raise KeyboardInterrupt
Namespace.tc = interrupt
try:
    with Wiring([20e6]):
        came = False
except KeyboardInterrupt:
    came = True
result = [came, before == settled(before), opened == files()]
""")
    assert result == [True, True, True]


@needs_hosts
def test_nothing_but_the_runs_own_frames_passes() -> None:
    """No announcements of IPv6, no bridge's chatter: what the interface counts is the run's."""
    result = look("""
from tutti.comm.interface import read_sent
with Wiring([None, None]) as wiring:
    time.sleep(1.2)
    result = [host.run(lambda: read_sent("eth0")) for host in wiring.hosts]
""")
    assert result == [0, 0]
