"""Another program that downloads into a folder, watched from outside: how far it is shows in how the folder grows."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tutti.data.dataset import Progress, SourceFailed

_LOOK = 0.1  # seconds between two looks at the folder
_PATIENCE = 300  # looks without growth after which the program counts as stuck
_DISK_FULL = re.compile(r"ENOSPC|no space left|enough free space", re.IGNORECASE)
_NPM_MARK = re.compile(r"npm (?:error|ERR!) ?")
_SAYS_LITTLE = re.compile(r"code |syscall |errno |W: |N: |$")


def find_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SourceFailed(f"there is no {name} on the PATH")
    return path


def run_program(command: list[str], folder: Path, size: int, progress: Progress, text: str) -> None:
    """Run it in the folder until it ends; `size` is about how many bytes will lie there then."""
    said = folder / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=out,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # so that it can be stopped together with what it has started
        )
    try:
        _watch(process, folder, lambda grown: _tell(progress, grown, size, text))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        words = said.read_text(errors="replace")
        if _DISK_FULL.search(words):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise SourceFailed(_complaint(words) or f"it ended with code {process.returncode}")


def _watch(process: subprocess.Popen[bytes], folder: Path, grown: Callable[[int], None]) -> None:
    """Wait for its end, as long as the folder grows."""
    size, quiet = -1, 0
    while True:
        before, size = size, _weigh(folder)
        quiet = quiet + 1 if size == before else 0
        grown(size)
        if quiet == _PATIENCE:
            raise SourceFailed(f"nothing came for {_PATIENCE * _LOOK:.0f} s")
        try:
            process.wait(_LOOK)
        except subprocess.TimeoutExpired:
            continue
        return


def _tell(progress: Progress, grown: int, size: int, text: str) -> None:
    """Before the first hundredth there is no saying how fast it is: programs write small files and ask around first."""
    progress(min(grown, size), size if grown > size / 100 else None, text)


def _weigh(folder: Path) -> int:
    """Bytes of all files in the folder, which come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _complaint(words: str) -> str:
    """The line of an error message that says most: the first that is no code, warning or note."""
    lines = (_NPM_MARK.sub("", line).strip().removeprefix("E: ") for line in words.splitlines())
    return next((line for line in lines if not _SAYS_LITTLE.match(line)), "")
