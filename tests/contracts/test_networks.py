"""What every network found in the folder must do."""

from __future__ import annotations

from typing import Any

import pytest
from catalogue import every
from hosts_here import machine_links, needs_hosts, run_inside

from tutti.networks.base import Network
from tutti.spec import names, parse

SPECS = every(Network)
EVERY = pytest.mark.parametrize("spec", SPECS)
# Goes through a door as a worker does, says what it finds there, and calls whoever launched it.
WORKER = """
import json, pickle, socket, sys
door, place = pickle.load(sys.stdin.buffer)
door.enter()
interfaces = [line.split(":")[0].strip() for line in open("/proc/thread-self/net/dev") if ":" in line]
from tutti.comm.interface import read_sent
before = read_sent(door.interface)
with socket.create_connection(place, timeout=20) as caller:
    caller.sendall(bytes(5000))
    caller.recv(1)
print(json.dumps({"interfaces": interfaces, "interface": door.interface, "sent": read_sent(door.interface) - before}))
"""


@EVERY
def test_its_text_parses_back(spec: str) -> None:
    network = parse(spec, Network)
    assert network.name in names("networks")
    assert parse(str(network), Network) == network


@EVERY
def test_checking_sets_nothing_up(spec: str) -> None:
    before = machine_links()
    for workers in (1, 3):
        parse(spec, Network).check(workers)
    assert machine_links() == before


@needs_hosts
@pytest.mark.parametrize("workers", [1, 3])
@EVERY
def test_workers_enter_and_reach_whoever_launched_them(spec: str, workers: int) -> None:
    before = machine_links()
    result = try_network(spec, workers)
    assert len(result["workers"]) == workers
    for worker in result["workers"]:
        assert worker["interface"] in worker["interfaces"]
        assert 5000 <= worker["sent"] < 12000, "the payload, its headers, and nothing of the other workers'"
    assert result["own"] == [parse(spec, Network).hosts] * workers
    if result["description"] is not None:
        assert result["description"]["asked"] == spec
        assert [row["host"] for row in result["description"]["measured"]] == list(range(workers))
    assert result["left"] == {"links": [], "files": 0, "groups": []}
    assert machine_links() == before


def try_network(spec: str, workers: int) -> Any:
    """Open it, send workers through its doors one after another, and close it."""
    return run_inside(f"""
        import json, os, pickle, socket, subprocess, sys, time
        from tutti.hosts import quota
        from tutti.hosts.namespaces import find_tool
        from tutti.networks.base import Network
        from tutti.spec import parse

        def look():
            listed = subprocess.run([find_tool("ip"), "-j", "link"], capture_output=True, text=True).stdout
            return {{
                "links": sorted(link["ifname"] for link in json.loads(listed)),
                "files": len(os.listdir("/proc/self/fd")),
                "groups": [str(f) for place in quota.places() for f in place.glob(f"tutti-{{os.getpid()}}-*")],
            }}

        def new(before, now):
            links = sorted(set(now["links"]) - set(before["links"]))
            return {{"links": links, "files": now["files"] - before["files"], "groups": now["groups"]}}

        network = parse({spec!r}, Network)
        network.enter()
        subprocess.run([find_tool("ip"), "link", "set", "lo", "up"], check=True)
        before, found = look(), []
        with network.open({workers}) as fabric, socket.create_server((fabric.address, 0)) as server:
            for rank in range({workers}):
                worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdin=subprocess.PIPE, stdout=-1)
                worker.stdin.write(pickle.dumps((fabric.door(rank), server.getsockname())))
                worker.stdin.close()
                server.settimeout(20)
                caller, _ = server.accept()
                received = 0
                while received < 5000:
                    received += len(caller.recv(5000))
                caller.sendall(b".")
                found.append(json.loads(worker.stdout.read()))
                caller.close()
                assert worker.wait() == 0
                worker.stdout.close()
            result = {{
                "workers": found,
                "own": [fabric.door(rank).own_interface for rank in range({workers})],
                "description": fabric.description,
            }}
        give_up = time.monotonic() + 10
        while new(before, look())["links"] and time.monotonic() < give_up:
            time.sleep(0.02)
        result["left"] = new(before, look())
    """)
