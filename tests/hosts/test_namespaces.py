"""Namespaces hold what is put into them, nothing of them is seen outside, and what fails says so in one sentence."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hosts_here import NOBODY, machine_links, needs_hosts, needs_nobody, python_of_nobody, run_inside, start, tutti

from tutti.errors import UserError
from tutti.hosts import namespaces
from tutti.hosts.namespaces import Namespace, enter, enter_own, find_tool


def test_the_machines_own_namespace_is_never_touched() -> None:
    with pytest.raises(AssertionError, match=r"enter_own\(\) comes first"):
        Namespace.here()


@needs_hosts
def test_sockets_stay_where_they_were_made() -> None:
    """Two hosts listen at the same address and port; whoever calls it reaches the one of his own namespace."""
    result = run_inside("""
        import socket, threading
        from tutti.hosts.namespaces import Namespace

        def answer(server, name):
            caller, _ = server.accept()
            caller.sendall(name.encode())
            caller.close()

        hosts, servers = {}, {}
        for name in ("one", "two"):
            hosts[name] = Namespace.new()
            hosts[name].ip("link set lo up")
            servers[name] = hosts[name].run(lambda: socket.create_server(("127.0.0.1", 7777)))
            threading.Thread(target=answer, args=(servers[name], name), daemon=True).start()
        call = lambda: socket.create_connection(("127.0.0.1", 7777), timeout=10).recv(10).decode()
        result = [hosts[name].run(call) for name in ("two", "one")]
    """)
    assert result == ["two", "one"]


@needs_hosts
def test_the_caller_stays_where_it_is_and_errors_come_back() -> None:
    result = run_inside("""
        import os
        from tutti.hosts.namespaces import Namespace
        place = lambda: os.readlink("/proc/thread-self/ns/net")
        own, host = place(), Namespace.new()
        inside = host.run(place)
        try:
            host.run(lambda: 1 / 0)
            error = ""
        except ZeroDivisionError as caught:
            error = str(caught)
        result = [inside != own, place() == own, Namespace.here().run(place) == own, error]
    """)
    assert result == [True, True, True, "division by zero"]


@needs_hosts
def test_nothing_of_it_is_seen_outside() -> None:
    before = machine_links()
    program = (
        "from tutti.hosts.namespaces import enter_own\nenter_own()\n"
        "from tutti.hosts.links import Wiring\n"
        "with Wiring([1e6, None]):\n"
        "    print('ready', flush=True)\n"
        "    input()\n"
    )
    running = start("-c", program)
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    during = machine_links()
    _, error = running.communicate("go on\n", timeout=30)
    assert running.returncode == 0, error
    assert before == during == machine_links()


@needs_hosts
def test_a_closed_namespace_is_gone_and_no_child_inherits_one() -> None:
    result = run_inside("""
        import os
        from tutti.hosts.namespaces import Namespace
        count = lambda: len(os.listdir("/proc/self/fd"))
        before = count()
        host = Namespace.new()
        inherited = os.get_inheritable(int(host.path.rpartition("/")[2]))
        opened = count()
        host.close()
        host.close()
        result = [opened - before, count() - before, inherited]
    """)
    assert result == [1, 0, False]


# --- sentences -------------------------------------------------------------------------------------------------------


@needs_hosts
@pytest.mark.parametrize(
    ("tool", "command", "said"),
    [
        ("ip", "link add x type nonsense", "Unknown device type"),
        ("ip", "no such thing", "is unknown"),
        ("tc", "qdisc add dev nowhere root tbf rate 1mbit burst 10k limit 10k", "nowhere"),
    ],
)
def test_what_a_tool_refuses_becomes_one_sentence(tool: str, command: str, said: str) -> None:
    result = run_inside(f"""
        from tutti.errors import UserError
        from tutti.hosts.namespaces import Namespace
        try:
            Namespace.new().{tool}({command!r})
            result = ""
        except UserError as error:
            result = str(error)
    """)
    assert result.startswith(f"{tool} refused to set up the hosts: ")
    assert said in result
    assert "\n" not in result


@pytest.mark.parametrize("missing", ["ip", "tc"])
def test_a_tool_that_is_missing_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "find_tool", lambda name: None if name == missing else f"/sbin/{name}")
    with pytest.raises(UserError, match=f"hosts need the command {missing}, which is not here: install iproute2"):
        enter_own()


def test_tools_are_found_where_an_ordinary_path_does_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_tool("no-such-tool") is None
    own = tmp_path / "ip"
    own.write_text("")
    own.chmod(0o755)
    assert find_tool("ip") == str(own)
    own.unlink()
    assert (find_tool("ip") is not None) == any(os.access(path, os.X_OK) for path in ("/usr/sbin/ip", "/sbin/ip"))


def test_another_system_than_linux_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: SimpleNamespace())
    with pytest.raises(UserError, match=r"hosts need Linux.*use --network loopback"):
        enter_own()


@pytest.mark.parametrize("refuses", ["unshare", "the map of users"])
def test_a_kernel_that_refuses_is_quoted(refuses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some distributions let an ordinary user make a user namespace and then do nothing in it."""
    monkeypatch.setattr(namespaces, "find_tool", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(namespaces, "_unshare", lambda _: "not permitted" if refuses == "unshare" else None)
    monkeypatch.setattr(namespaces, "_become_root", lambda *_: "not permitted")
    with pytest.raises(UserError, match=r"refuses \(not permitted\); run as root, or allow user namespaces") as error:
        enter_own()
    assert "\n" not in str(error.value)
    with pytest.raises(AssertionError):
        Namespace.here()


def test_what_is_no_namespace_cannot_be_entered(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        enter(str(tmp_path / "nothing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=f"cannot enter {tmp_path}/file"):
        enter(str(tmp_path / "file"))


# --- an ordinary user ------------------------------------------------------------------------------------------------


def as_nobody(network: str) -> subprocess.CompletedProcess[str]:
    python = python_of_nobody()
    assert python is not None
    return tutti("net", "try", network, "--workers", "2", "--json", "-", python=python, before=tuple(NOBODY))


@needs_nobody
@needs_hosts
def test_an_ordinary_user_has_hosts_without_quotas() -> None:
    done = as_nobody("hosts(100Mbit)")
    assert done.returncode == 0, done.stderr
    assert [row["asked"] for row in json.loads(done.stdout)["measured"]] == [1e8, 1e8]


@needs_nobody
@needs_hosts
def test_an_ordinary_user_is_told_what_a_quota_needs() -> None:
    done = as_nobody("hosts(100Mbit, cpu=0.2)")
    assert done.returncode == 2
    assert done.stderr.startswith("tutti: cpu=0.2 needs a cgroup that may be written (")
    assert done.stderr.endswith("); run as root, or leave cpu out\n")
    assert done.stderr.count("\n") == 1
