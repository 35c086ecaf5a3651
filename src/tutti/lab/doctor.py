"""What this machine has, what is missing, and how fast its wires really are.

Nothing heavy is imported before it is asked about: a machine without torch gets its report too.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tutti.errors import RunFailed, UserError
from tutti.hosts.quota import places
from tutti.lab.host import list_interfaces, read_cpu_quota, read_memory
from tutti.lab.units import format_bytes, format_number, format_seconds
from tutti.machine import count_cores

Status = Literal["ok", "warning", "problem"]
_MARKS: dict[Status, tuple[str, str]] = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}
_PACKAGES = {
    "numpy": "torch hands tensors over with it",
    "rich": "tables and progress are made with it",
    "matplotlib": "pictures are drawn with it",
    "scikit-learn": "it holds the images of the digits task",
}
_WORKER_MEMORY = 0.4e9  # bytes that one worker with a small model takes
_ELSEWHERE = "192.0.2.1"  # an address reserved for documentation: where would a message to another machine leave?


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, and what to do or to know about it."""

    name: str
    status: Status
    value: str
    advice: str


def examine() -> list[Check]:
    """Every check, in the order of a report; what needs torch is left out where there is none."""
    software = [*_python(), *_torch(), *_packages(), *_start_method(), *_launcher(), *_openssl()]
    machine = [*_cores(), *_load(), *_memory(), *_disk(), *_loopback(), *_hosts()]
    if any(check.name.startswith("torch") and check.status == "problem" for check in software):
        return software + machine
    return [*software, *machine, *_interfaces(), *_wires()]


def make_report(checks: list[Check]) -> RenderableType:
    """One line per check, with the advice under those that are not all right, and a sentence on the whole."""
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column()
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    for check in checks:
        rows.add_row(Text(*_MARKS[check.status]), Text(check.name, "bold"), Text(check.value))
        if check.status != "ok":
            rows.add_row("", "", Text(check.advice, _MARKS[check.status][1]))
    return Group(rows, Text(f"\n{_verdict(checks)}", "bold"))


def _verdict(checks: list[Check]) -> str:
    problems, warnings = (sum(check.status == status for check in checks) for status in ("problem", "warning"))
    if problems:
        return f"{problems} of {len(checks)} checks found a problem: tutti cannot do all of its work here."
    if warnings:
        return f"tutti works here; {warnings} of {len(checks)} checks found something to know."
    return "tutti works here, and nothing stands in its way."


# --- software --------------------------------------------------------------------------------------------------------


def _python() -> list[Check]:
    good = sys.version_info >= (3, 11)
    value = f"{platform.python_version()} ({platform.python_implementation()}, {platform.machine()})"
    return [Check("Python", "ok" if good else "problem", value, "tutti needs Python 3.11 or newer.")]


def _torch() -> list[Check]:
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        return [Check("torch", "problem", f"cannot be imported: {error}", "Install it: pip install torch.")]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    devices = torch.cuda.device_count()
    if devices:
        build += f", {devices} × {torch.cuda.get_device_name(0)}"
    blind = torch.version.cuda is not None and not devices
    advice = (
        "The build is for CUDA but sees no device: use --device cpu." if blind else "--device auto takes CUDA if any."
    )
    found = [Check("torch", "warning" if blind else "ok", f"{torch.__version__} ({build})", advice)]
    if not dist.is_available():
        return [*found, Check("torch.distributed", "problem", "not in this build", "Install a build of torch with it.")]
    backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    value = ", ".join(name if there else f"no {name}" for name, there in backends.items())
    advice = "gloo runs native collectives and torch-ddp on CPU, nccl on CUDA; mpi is not needed."
    return [*found, Check("torch.distributed", "ok" if backends["gloo"] else "problem", value, advice)]


def _packages() -> list[Check]:
    return [_package(name, use) for name, use in _PACKAGES.items()]


def _package(name: str, use: str) -> Check:
    try:
        return Check(name, "ok", importlib.metadata.version(name), f"Needed: {use}.")
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "warning", "not installed", f"Install it, since {use}: pip install {name}.")


def _start_method() -> list[Check]:
    if not hasattr(os, "fork"):
        advice = "Workers are forked, which this system cannot do: use --engine threads."
        return [Check("start method", "problem", "no fork", advice)]
    return [Check("start method", "ok", "fork server", "Workers are forked from a server that has imported torch.")]


def _launcher() -> list[Check]:
    """Whose sockets there are before ours (docs/security.md)."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        advice = (
            "torchrun's stores listen on all interfaces, and with its c10d rendezvous a stranger who reaches the port "
            "can run code as you: keep strangers off that network, or let tutti start the workers (docs/security.md)."
        )
        return [Check("launcher", "warning", "torchrun", advice)]
    advice = "On one machine nothing listens but the workers, on loopback, until they have met."
    return [Check("launcher", "ok", "tutti's own", advice)]


def _openssl() -> list[Check]:
    command = shutil.which("openssl")
    if command is None:
        advice = "--tls makes its certificate with it: install openssl, or give --tls-cert and --tls-key."
        return [Check("openssl", "warning", "command not found", advice)]
    version = subprocess.run([command, "version"], capture_output=True, text=True).stdout.partition(" (")[0].strip()
    return [Check("openssl", "ok", version, "--tls makes a certificate for each run with it.")]


# --- machine ---------------------------------------------------------------------------------------------------------


def _cores() -> list[Check]:
    cores, quota = count_cores(), read_cpu_quota()
    value = f"{cores} usable, {'no quota' if quota is None else f'a quota of {format_number(quota)}'}"
    if quota is not None and quota < cores:
        advice = f"The cgroup stops all workers together at {format_number(quota)} cores' worth: step times will jump."
        return [Check("cores", "warning", value, advice)]
    if cores == 1:
        return [Check("cores", "warning", value, "Workers take turns on one core: no run can be faster than single.")]
    advice = f"More than {cores} workers share cores: compare ways to agree then, not numbers of workers."
    return [Check("cores", "ok", value, advice)]


def _load() -> list[Check]:
    if not hasattr(os, "getloadavg"):
        return []
    load = os.getloadavg()[0]
    busy = load > count_cores() / 2
    advice = (
        "Something else is running: wait for it, or expect noisy step times." if busy else "Little else is running."
    )
    return [Check("load", "warning" if busy else "ok", f"{load:.2f} in the last minute", advice)]


def _memory() -> list[Check]:
    memory = read_memory()
    if memory is None:
        return [Check("memory", "warning", "unknown", "A worker with a small model takes about 0.4 GB.")]
    workers = int(memory[0] / _WORKER_MEMORY)
    value = f"{format_bytes(memory[0])} free of {format_bytes(memory[1])}"
    advice = f"Enough for about {workers} workers with a small model."
    return [Check("memory", "ok" if workers >= 4 else "warning" if workers >= 2 else "problem", value, advice)]


def _disk() -> list[Check]:
    places = {"working folder": Path.cwd(), "temporary files": Path(tempfile.gettempdir())}
    free = {name: shutil.disk_usage(path).free for name, path in places.items()}
    least = min(free.values())
    value = ", ".join(f"{format_bytes(size)} ({name})" for name, size in free.items())
    advice = "A record takes up to some megabytes; a model and its checkpoints take more."
    return [Check("free disk", "ok" if least > 2**30 else "warning" if least > 2**26 else "problem", value, advice)]


# --- network ---------------------------------------------------------------------------------------------------------


def _interfaces() -> list[Check]:
    addresses = list_interfaces()
    value = ", ".join(f"{name} {address or '(no IPv4)'}" for name, address in addresses.items())
    advice = "--interface takes one of these names, or an address."
    return [Check("interfaces", "ok" if addresses else "problem", value or "none", advice), _wire_interface(addresses)]


def _wire_interface(addresses: dict[str, str]) -> Check:
    """Which one our wire listens on when nobody names one."""
    from tutti.comm.handshake import find_address

    try:
        outside = find_address(None, _ELSEWHERE)
    except UserError:
        advice = "No route leads out of this machine: a run over several nodes needs one, or --interface."
        return Check("wire listens on", "warning", "lo for local runs", advice)
    name = next((name for name, address in addresses.items() if address == outside), "?")
    value = f"lo for local runs, {name} ({outside}) for runs over several nodes"
    return Check("wire listens on", "ok", value, "A master on another network may need another --interface.")


def _loopback() -> list[Check]:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2.0) as there,
            server.accept()[0] as here,
        ):
            there.sendall(b"!")
            here.recv(1)
    except OSError as error:
        advice = (
            "Workers of one machine meet on 127.0.0.1: bring lo up (ip link set lo up) or allow it in the firewall."
        )
        return [Check("loopback", "problem", f"127.0.0.1 does not work: {error}", advice)]
    return [Check("loopback", "ok", "127.0.0.1 works", "Workers of one machine meet there.")]


def _hosts() -> list[Check]:
    """Whether `--network hosts(...)` would work here; tried in a process of its own, which ends in its namespace."""
    program = (
        "from tutti.errors import UserError; from tutti.hosts.namespaces import enter_own\n"
        "try: enter_own()\nexcept UserError as error: print(error)"
    )
    tried = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if tried.returncode != 0 or tried.stdout:
        reason = tried.stdout.strip() or tried.stderr.strip().splitlines()[-1]
        return [Check("hosts", "warning", "no emulated hosts", f"{reason[0].upper()}{reason[1:]}.")]
    if not any(os.access(place, os.W_OK) for place in places()):
        advice = "hosts(1Gbit) works; hosts(cpu=...) needs root, since no cgroup here may be written."
        return [Check("hosts", "warning", "links with rates, no CPU quotas", advice)]
    advice = 'Try one: tutti net try "hosts(1Gbit, cpu=0.5)".'
    return [Check("hosts", "ok", "links with rates and CPU quotas", advice)]


def _wires() -> list[Check]:
    """The live test: two workers, our wire and torch's."""
    try:
        from tutti.lab.ping import ping

        pings = ping()
    except (ImportError, UserError, RunFailed) as error:
        advice = "Two workers of this machine could not exchange anything: see the other problems first."
        return [Check("live test", "problem", str(error).splitlines()[0], advice)]
    names = {"shared": "wire shared", "tcp": "wire tcp", "torch": "wire torch (gloo)"}
    checks = []
    for each in pings:
        value = f"4 KiB in {format_seconds(each.round_trip)}, 4 MiB at {format_bytes(each.bandwidth)}/s"
        advice = "Ring all-reduce of two local workers." if each.right else "The sums were wrong: do not use this wire."
        checks.append(Check(names[each.wire], "ok" if each.right else "problem", value, advice))
    return checks
