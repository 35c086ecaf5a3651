"""Hosts for tests: a process that has entered a namespace cannot go back, so it is always another one that enters.

Where this machine can make no hosts the tests that need them are skipped and say why; with TUTTI_REQUIRE_HOSTS set they
run, and fail.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tutti.errors import UserError
from tutti.hosts.quota import Quota, places

SOURCE = Path(__file__).parent.parent / "src"
NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
_ENTER = "import json\nfrom tutti.hosts.namespaces import enter_own\nenter_own()\n"
_TELL = "\nprint(json.dumps(result))\n"


def run_inside(source: str, timeout: float = 60.0) -> Any:
    """Run a snippet in a process that is in a namespace of its own; what it calls `result` comes back."""
    command = [sys.executable, "-c", _ENTER + textwrap.dedent(source) + _TELL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def start(*command: str, **options: Any) -> subprocess.Popen[str]:
    """A process in a session of its own, so that a signal to its group does not meet the tests."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *command],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        env=environment(),
        **options,
    )


def tutti(*args: str, python: str = sys.executable, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, python, "-m", "tutti", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment())


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "140"}


def wait_until(holds: Callable[[], Any], seconds: float) -> Any:
    """What the function says as soon as that is true; what it says at the end if it never is."""
    give_up = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < give_up:
        time.sleep(0.05)
    return found


# --- what is there ---------------------------------------------------------------------------------------------------


def machine_links() -> list[tuple[int, str]]:
    """The interfaces of the namespace that these tests run in; one that was made again has another number."""
    return socket.if_nameindex()


def groups_of(process: int) -> list[Path]:
    """The CPU quotas that a process has made."""
    return sorted(folder for place in places() for folder in place.glob(f"tutti-{process}-*"))


def workers_of(process: int) -> list[int]:
    """The workers of a run that have entered their hosts."""
    inside = [int(line) for group in groups_of(process) for line in (group / "cgroup.procs").read_text().split()]
    return [number for number in inside if "tutti.worker" in _command_line(number)]


def is_alive(process: int) -> bool:
    return _command_line(process) != ""


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


# --- what this machine can do ----------------------------------------------------------------------------------------


@functools.cache
def why_no_hosts() -> str:
    command = [sys.executable, "-c", f"{_ENTER}from tutti.hosts.namespaces import Namespace\nNamespace.new()"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return "" if done.returncode == 0 else said.removeprefix("tutti.errors.UserError: ")


@functools.cache
def why_no_quota() -> str:
    try:
        Quota.make("probe", 0.5).close()
    except UserError as error:
        return str(error)
    return ""


@functools.cache
def python_of_nobody() -> str | None:
    """An interpreter that an ordinary user can run, with the source within his reach; None where there is none."""
    program = "import ctypes, json, socket, sys; assert sys.version_info >= (3, 11); import tutti.hosts.measure"
    for python in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run([*NOBODY, python, "-c", program], capture_output=True, env=environment())
        if done.returncode == 0:
            return python
    return None


def _why_no_nobody() -> str:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return "only root can try what an ordinary user can do (with setpriv)"
    return "" if python_of_nobody() else f"an ordinary user can reach neither {sys.executable} nor {SOURCE}"


def _unless(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(bool(reason) and "TUTTI_REQUIRE_HOSTS" not in os.environ, reason=reason)


needs_hosts = _unless(why_no_hosts())
needs_quota = _unless(why_no_quota())
needs_nobody = pytest.mark.skipif(bool(_why_no_nobody()), reason=_why_no_nobody())
