"""Every check finds something out on this machine; what is missing gets a status and an advice, never a stack trace."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tutti.errors import RunFailed
from tutti.lab import doctor, ping
from tutti.lab.doctor import Check, examine, make_report


def show(checks: list[Check], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(make_report(checks))
    return console.export_text()


@pytest.fixture(scope="module")
def checks() -> dict[str, Check]:
    """The whole examination, the live test included."""
    return {check.name: check for check in examine()}


@pytest.fixture
def no_wires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_wires", list)


def test_every_check_is_there_and_none_is_a_problem(checks: dict[str, Check]) -> None:
    assert set(checks) == {
        *("Python", "torch", "torch.distributed", "numpy", "rich", "matplotlib", "scikit-learn", "start method"),
        *("launcher", "openssl", "cores", "load", "memory", "free disk", "loopback", "hosts"),
        *("interfaces", "wire listens on"),
        *("wire shared", "wire torch (gloo)"),
    }
    assert not [check for check in checks.values() if check.status == "problem"]
    for check in checks.values():
        assert check.value
        assert re.fullmatch(r"[^\n]+\.", check.advice), f"{check.name}: advice is one sentence"


def test_the_live_test_says_how_fast(checks: dict[str, Check]) -> None:
    for name in ("wire shared", "wire torch (gloo)"):
        assert re.fullmatch(r"4 KiB in [\d.]+ [mµ]?s, 4 MiB at [\d.]+ [KMG]iB/s", checks[name].value)


def test_checks_are_json(checks: dict[str, Check]) -> None:
    rows = json.loads(json.dumps([asdict(check) for check in checks.values()]))
    assert all(row.keys() == {"name", "status", "value", "advice"} for row in rows)


def test_the_report_has_a_line_per_check(checks: dict[str, Check]) -> None:
    text = show(list(checks.values()))
    assert all(check.name in text for check in checks.values())
    assert text.rstrip().splitlines()[-1].startswith("tutti works here")


def test_the_report_gives_advice_where_it_is_needed() -> None:
    fine, odd, bad = (
        Check("a", "ok", "1", "Fine."),
        Check("b", "warning", "2", "Odd."),
        Check("c", "problem", "3", "Bad."),
    )
    assert "nothing stands in its way" in show([fine])
    assert "Fine." not in show([fine])
    assert "1 of 2 checks found something to know" in show([fine, odd])
    text = show([fine, odd, bad])
    assert "Odd." in text
    assert "Bad." in text
    assert "1 of 3 checks found a problem" in text


# --- machines that lack something ------------------------------------------------------------------------------------


def find(name: str) -> Check:
    return next(check for check in examine() if check.name == name)


def fail(error: Exception) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def test_without_torch_the_rest_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    checks = {check.name: check for check in examine()}
    assert checks["torch"].status == "problem"
    assert "pip install torch" in checks["torch"].advice
    assert "loopback" in checks
    assert "wire shared" not in checks


@pytest.mark.usefixtures("no_wires")
def test_without_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", fail(importlib.metadata.PackageNotFoundError("no")))
    check = find("scikit-learn")
    assert (check.status, check.value) == ("warning", "not installed")
    assert "pip install scikit-learn" in check.advice


@pytest.mark.usefixtures("no_wires")
def test_without_openssl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert find("openssl").status == "warning"
    assert "--tls-cert" in find("openssl").advice


@pytest.mark.usefixtures("no_wires")
@pytest.mark.parametrize(
    ("cores", "quota", "status", "value"),
    [
        (4, None, "ok", "4 usable, no quota"),
        (4, 8.0, "ok", "4 usable, a quota of 8.00"),
        (4, 1.5, "warning", "4 usable, a quota of 1.50"),
        (1, None, "warning", "1 usable, no quota"),
    ],
)
def test_cores_and_quota(
    cores: int, quota: float | None, status: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "count_cores", lambda: cores)
    monkeypatch.setattr(doctor, "read_cpu_quota", lambda: quota)
    assert (find("cores").status, find("cores").value) == (status, value)


@pytest.mark.usefixtures("no_wires")
@pytest.mark.parametrize(("load", "status"), [(0.1, "ok"), (4.0, "warning")])
def test_load(load: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "count_cores", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert find("load").status == status


@pytest.mark.usefixtures("no_wires")
@pytest.mark.parametrize(
    ("memory", "status"),
    [((8e9, 16e9), "ok"), ((1e9, 16e9), "warning"), ((0.5e9, 16e9), "problem"), (None, "warning")],
)
def test_memory(memory: tuple[float, float] | None, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "read_memory", lambda: memory)
    assert find("memory").status == status


@pytest.mark.usefixtures("no_wires")
@pytest.mark.parametrize(("free", "status"), [(2**34, "ok"), (2**28, "warning"), (2**20, "problem")])
def test_disk(free: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(free))
    assert find("free disk").status == status


@pytest.mark.usefixtures("no_wires")
def test_without_a_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert (find("start method").status, find("start method").value) == ("problem", "no fork")


@pytest.mark.usefixtures("no_wires")
def test_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("launcher").status == "ok"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    check = find("launcher")
    assert (check.status, check.value) == ("warning", "torchrun")
    assert "can run code as you" in check.advice


@pytest.mark.usefixtures("no_wires")
def test_without_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_server", fail(OSError("no such device")))
    assert find("loopback").status == "problem"
    assert "no such device" in find("loopback").value


@pytest.mark.usefixtures("no_wires")
def test_without_the_tools_for_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 0, stdout="hosts need the command tc\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    check = find("hosts")
    assert (check.status, check.advice) == ("warning", "Hosts need the command tc.")


@pytest.mark.usefixtures("no_wires")
def test_hosts_without_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 0, stdout="", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(doctor, "places", lambda: [Path("/no/such/cgroup")])
    assert (find("hosts").status, find("hosts").value) == ("warning", "links with rates, no CPU quotas")


def test_workers_that_cannot_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ping, "ping", fail(RunFailed("worker 1 did not arrive\nand more")))
    check = find("live test")
    assert (check.status, check.value) == ("problem", "worker 1 did not arrive")


def test_wrong_sums_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ping, "ping", lambda: [ping.Ping("shared", 1e-4, 1e9, right=False)])
    assert find("wire shared").status == "problem"
