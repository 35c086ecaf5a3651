"""Network namespaces without names: each is kept alive by an open file of this process, and by nothing else.

So nothing can be left behind: whatever ends this process, the kernel takes the namespaces down with all that is in
them. Before the first one is made the process itself moves into a namespace of its own (`enter_own`), where its bridges
cannot meet the machine's networks; an ordinary user gets the right to do so from a user namespace, where the kernel
allows one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tutti.errors import UserError

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # linux/sched.h
Result = TypeVar("Result")
_own = False  # whether this process has moved


def enter_own() -> None:
    """Move this process into a network namespace of its own, for good; while it has but one thread."""
    global _own
    if _own:
        return
    check_tools()
    refused = _move(os.getuid(), os.getgid())
    if refused is not None:
        raise UserError(
            f"hosts need network namespaces, which this machine refuses ({refused}); run as root, or allow user "
            "namespaces (sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    _own = True
    here = Namespace.here()
    here.ip("link set lo up")
    here.close()


def check_tools() -> None:
    if not hasattr(ctypes.CDLL(None), "setns"):
        raise UserError("hosts need Linux: there are no network namespaces here; use --network loopback")
    for tool in ("ip", "tc"):
        if find_tool(tool) is None:
            raise UserError(f"hosts need the command {tool}, which is not here: install iproute2")


def find_tool(name: str) -> str | None:
    """Also where an ordinary user's PATH does not look."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


class Namespace:
    """A network namespace; `here` stands for the one this process is in."""

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def new(cls) -> Namespace:
        return cls(_in_thread(_make))

    @classmethod
    def here(cls) -> Namespace:
        assert _own, "enter_own() comes first: the machine's own namespace is never touched"
        return cls(os.open("/proc/self/ns/net", os.O_RDONLY))

    @property
    def path(self) -> str:
        """Where other processes of this user find it, as long as this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def run(self, function: Callable[[], Result]) -> Result:
        """Call the function inside, on a thread of its own; sockets that it makes stay there."""

        def inside() -> Result:
            enter(self.path)
            return function()

        return _in_thread(inside)

    def ip(self, *commands: str) -> None:
        self._call(["ip", "-batch", "-"], "\n".join(commands) + "\n")

    def tc(self, *commands: str) -> None:
        self._call(["tc", "-batch", "-"], "\n".join(commands) + "\n")

    def ask_tc(self, *words: str) -> str:
        """What `tc` prints about this namespace."""
        return self._call(["tc", *words], "")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _call(self, command: list[str], text: str) -> str:
        tool = find_tool(command[0])
        assert tool is not None, "check_tools() comes first"
        done = self.run(lambda: subprocess.run([tool, *command[1:]], input=text, capture_output=True, text=True))
        if done.returncode != 0:
            said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            raise UserError(f"{command[0]} refused to set up the hosts: {said}")
        return done.stdout


def enter(path: str) -> None:
    """Move the calling thread into the namespace at this path."""
    file = os.open(path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file, _NEW_NET) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot enter {path}: {os.strerror(error)}")
    finally:
        os.close(file)


def _make() -> int:
    refused = _unshare(_NEW_NET)
    if refused is not None:
        raise UserError(f"hosts need network namespaces, which this machine refuses ({refused}); run as root")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _move(user: int, group: int) -> str | None:
    """As root plainly, else with a user namespace around it; the reason where neither is allowed."""
    if user == 0 and _unshare(_NEW_NET) is None:
        return None
    return _unshare(_NEW_USER | _NEW_NET) or _become_root(user, group)


def _become_root(user: int, group: int) -> str | None:
    """Root of the user namespace just entered, which stands for this user outside; the reason where that is refused."""
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        return error.strerror
    return None


def _unshare(flags: int) -> str | None:
    """Move the calling thread into new namespaces; the reason where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return None if libc.unshare(flags) == 0 else os.strerror(ctypes.get_errno())


def _in_thread(function: Callable[[], Result]) -> Result:
    """A thread's namespace ends with the thread, so nobody has to find the way back."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
