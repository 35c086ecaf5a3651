"""CPU quotas: where they are made, whose they are, what removes them; on trees made up here, and on the real one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hosts_here import needs_quota, start

from tutti.errors import UserError
from tutti.hosts import quota
from tutti.hosts.quota import Quota, left_behind, places, started, sweep

CPU = Path("sys/fs/cgroup")
ME = os.getpid()
BURN = """
import sys, time
from pathlib import Path
from tutti.hosts.quota import join
join(Path(sys.argv[1]))
begun, used = time.perf_counter(), time.process_time()
while time.perf_counter() < begun + 0.6: pass
print((time.process_time() - used) / (time.perf_counter() - begun))
"""
SLEEP = "import sys, time; from pathlib import Path; from tutti.hosts.quota import join; join(Path(sys.argv[1])); "


class Machine:
    """A root folder with /proc and cgroup trees, in which folders behave as the kernel's groups do."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.refuses: dict[Path, int] = {}  # place -> the error of making a group there
        self.alive(ME, "1000")
        (root / "proc" / "self").mkdir()
        self._make, self._remove = Path.mkdir, Path.rmdir
        monkeypatch.setattr(Path, "mkdir", lambda path, *args, **options: self.mkdir(path, *args, **options))
        monkeypatch.setattr(Path, "rmdir", lambda path: self.rmdir(path))
        monkeypatch.setattr(quota, "_PATIENCE", 0.1)

    def alive(self, process: int, start: str, state: str = "S") -> None:
        folder = self.root / "proc" / str(process)
        folder.mkdir(parents=True, exist_ok=True)
        figures = " ".join(["0"] * 18)
        (folder / "stat").write_text(f"{process} (a name) with) {state} {figures} {start} 0 0\n")

    def mount(self, mounts: str, groups: str) -> None:
        (self.root / "proc/self/mounts").write_text(mounts)
        (self.root / "proc/self/cgroup").write_text(groups)

    def group(self, path: str, hands_on: str = "") -> Path:
        folder = self.root / CPU / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(hands_on)
        return folder

    def mkdir(self, path: Path, *args: object, **options: object) -> None:
        if path.parent in self.refuses:
            raise OSError(self.refuses[path.parent], os.strerror(self.refuses[path.parent]))
        self._make(path, *args, **options)  # type: ignore[arg-type]
        control = path.parent / "cgroup.subtree_control"
        files = ["cpu.cfs_period_us", "cpu.cfs_quota_us"] if not control.exists() else []
        if control.exists() and "cpu" in control.read_text().split():
            files = ["cpu.max"]
        if path.name.startswith("tutti-"):
            for name in ["cgroup.procs", *files]:
                (path / name).write_text("")

    def rmdir(self, path: Path) -> None:
        if (path / "cgroup.procs").read_text():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        for file in path.iterdir():
            file.unlink()
        self._remove(path)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def version_1(machine: Machine) -> Machine:
    """The tree of the CPU controller beside others, and an empty one of version 2, as many machines have them."""
    machine.mount(
        "proc /proc proc rw 0 0\n"
        "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
        "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
        "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
        "5:memory:/elsewhere\n4:cpu,cpuacct:/jobs/7\n1:name=systemd:/\n0::/\n",
    )
    (machine.root / CPU / "cpu/jobs/7").mkdir(parents=True)
    (machine.root / CPU / "unified").mkdir()
    (machine.root / CPU / "unified/cgroup.controllers").write_text("hugetlb\n")
    return machine


@pytest.fixture
def version_2(machine: Machine) -> Machine:
    """One tree; this process is in a group that holds processes and so hands nothing on."""
    machine.mount("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n", "0::/user/me/shell\n")
    machine.group(".", "cpu memory")
    (machine.root / CPU / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    machine.group("user", "cpu memory")
    machine.group("user/me", "memory")
    machine.group("user/me/shell")
    return machine


# --- making one ------------------------------------------------------------------------------------------------------


def test_version_1_makes_it_in_the_own_group(version_1: Machine) -> None:
    made = Quota.make("net0-host1", 0.4, version_1.root)
    assert made.folder == version_1.root / CPU / "cpu/jobs/7" / f"tutti-{ME}-1000-net0-host1"
    assert (made.folder / "cpu.cfs_period_us").read_text() == "20000"
    assert (made.folder / "cpu.cfs_quota_us").read_text() == "8000"


def test_version_2_makes_it_in_the_nearest_group_that_hands_the_controller_on(version_2: Machine) -> None:
    made = Quota.make("net0-host1", 1.5, version_2.root)
    assert made.folder == version_2.root / CPU / "user" / f"tutti-{ME}-1000-net0-host1"
    assert (made.folder / "cpu.max").read_text() == "30000 20000"


@pytest.mark.parametrize(
    ("cpus", "limit"), [(0.01, "1000 100000"), (0.03, "1000 33334"), (0.05, "1000 20000"), (2, "40000 20000")]
)
def test_a_small_share_has_a_longer_period(version_2: Machine, cpus: float, limit: str) -> None:
    """The kernel takes no limit below a millisecond."""
    assert (Quota.make("x", cpus, version_2.root).folder / "cpu.max").read_text() == limit


@pytest.mark.parametrize("own", ["/not/visible/here", "/user/me/shell (deleted)"])
def test_a_group_that_cannot_be_seen_leaves_the_whole_tree(version_2: Machine, own: str) -> None:
    (version_2.root / "proc/self/cgroup").write_text(f"0::{own}\n")
    assert list(places(version_2.root)) == [version_2.root / CPU]


def test_where_one_place_refuses_the_next_is_tried(version_2: Machine) -> None:
    version_2.refuses[version_2.root / CPU / "user"] = errno.EACCES
    assert Quota.make("x", 0.5, version_2.root).folder.parent == version_2.root / CPU


def test_a_group_that_takes_no_limit_is_removed_again(version_1: Machine) -> None:
    """It has no file for the limit: the controller is not there after all."""
    (version_1.root / CPU / "cpu/jobs/7/cgroup.subtree_control").write_text("")
    assert Quota.make("x", 0.5, version_1.root).folder.parent == version_1.root / CPU / "cpu/jobs"
    assert [path.name for path in (version_1.root / CPU / "cpu/jobs/7").iterdir()] == ["cgroup.subtree_control"]


def test_without_permission_the_sentence_says_where_and_what_would_work(version_2: Machine) -> None:
    for place in ("user", "."):
        version_2.refuses[version_2.root / CPU / place] = errno.EACCES
    with pytest.raises(UserError) as error:
        Quota.make("x", 0.25, version_2.root)
    place = version_2.root / CPU
    assert str(error.value) == (
        f"cpu=0.25 needs a cgroup that may be written ({place}: Permission denied); run as root, or leave cpu out"
    )


@pytest.mark.parametrize(
    "mounts", ["", "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"]
)
def test_without_a_controller_the_sentence_says_so(machine: Machine, mounts: str) -> None:
    machine.mount(mounts, "0::/\n")
    with pytest.raises(UserError, match=r"\(there is no cgroup with a CPU controller\); run as root, or leave cpu out"):
        Quota.make("x", 0.5, machine.root)
    assert left_behind(machine.root) == []


def test_a_tree_that_hands_nothing_on_has_no_place(version_2: Machine) -> None:
    for group in (".", "user"):
        version_2.group(group, "memory")
    assert list(places(version_2.root)) == []


def test_a_machine_without_proc_has_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep(tmp_path) == []


# --- whose they are --------------------------------------------------------------------------------------------------


def test_a_process_is_known_by_its_start() -> None:
    first = start("-c", "input()")
    time.sleep(0.03)
    second = start("-c", "input()")
    assert int(started(first.pid)) < int(started(second.pid))
    second.kill()
    deadline = time.monotonic() + 5
    while started(second.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert started(second.pid) == "", "what is left of it until its parent has looked is no process"
    first.kill()
    for process in (first, second):
        process.communicate()
    assert started(first.pid) == ""


@pytest.fixture
def many_groups(version_1: Machine) -> dict[str, Path]:
    """Groups of the living and the dead, and what only looks like one."""
    version_1.alive(500, "7777")
    version_1.alive(501, "7777", state="Z")
    place = version_1.root / CPU / "cpu/jobs"
    names = {
        "own": f"tutti-{ME}-1000-net0-host0",
        "living": "tutti-500-7777-net0-host0",
        "number reused": "tutti-500-1234-net0-host0",
        "gone": "tutti-499-7777-net0-host0",
        "not yet reaped": "tutti-501-7777-net3-host12",
        "another's": "docker-1-2-x",
        "no maker": "tutti-mine-too-x",
        "no label": "tutti-499-7777",
    }
    return {key: place / name for key, name in names.items()}


def test_left_behind_is_what_no_living_process_made(version_1: Machine, many_groups: dict[str, Path]) -> None:
    for folder in many_groups.values():
        folder.mkdir()
    (many_groups["gone"].parent / "tutti-499-7777-file").write_text("")
    wanted = [many_groups[key] for key in ("gone", "number reused", "not yet reaped")]
    assert left_behind(version_1.root) == wanted


def test_sweep_removes_what_was_left_and_nothing_else(version_1: Machine, many_groups: dict[str, Path]) -> None:
    for folder in many_groups.values():
        folder.mkdir()
    swept = sweep(version_1.root)
    assert swept == [many_groups[key] for key in ("gone", "number reused", "not yet reaped")]
    assert {key for key, folder in many_groups.items() if folder.exists()} == {
        "own",
        "living",
        "another's",
        "no maker",
        "no label",
    }
    assert sweep(version_1.root) == []


def test_what_cannot_be_removed_is_not_said_to_be(
    version_1: Machine, many_groups: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another namespace reads as 0, which a signal would take for our own group: nobody is killed."""
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, _: killed.append(process))
    many_groups["gone"].mkdir()
    (many_groups["gone"] / "cgroup.procs").write_text(f"0\n{ME}\n499\n")
    assert sweep(version_1.root) == []
    assert set(killed) == {499}
    assert many_groups["gone"].exists()


# --- the real tree ---------------------------------------------------------------------------------------------------


@needs_quota
def test_a_quota_holds_and_is_removed() -> None:
    """An upper bound only: on a busy machine a process may get less."""
    made = Quota.make("test", 0.25)
    try:
        environment = {**os.environ, "PYTHONPATH": str(Path(quota.__file__).parents[2])}
        command = [sys.executable, "-S", "-c", BURN, str(made.folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert 0 < float(done.stdout) < 0.3
    finally:
        made.close()
    assert not made.folder.exists()


@needs_quota
@pytest.mark.parametrize("cpus", [0.01, 0.049, 1024])
def test_the_kernel_takes_every_share_that_may_be_asked_for(cpus: float) -> None:
    made = Quota.make("test", cpus)
    made.close()
    assert not made.folder.exists()


@needs_quota
def test_a_quota_is_removed_with_what_still_runs_in_it() -> None:
    made = Quota.make("test", 0.5)
    running = start("-c", f"{SLEEP}print('inside', flush=True); time.sleep(60)", str(made.folder))
    assert running.stdout is not None
    assert running.stdout.readline() == "inside\n"
    assert (made.folder / "cgroup.procs").read_text() == f"{running.pid}\n"
    made.close()
    assert not made.folder.exists()
    running.communicate(timeout=10)
    assert running.returncode == -signal.SIGKILL


@needs_quota
def test_a_living_runs_quota_is_not_left_behind_and_a_killed_ones_is() -> None:
    program = "from tutti.hosts.quota import Quota; print(Quota.make('test', 0.5).folder, flush=True); input()"
    running = start("-c", program)
    assert running.stdout is not None
    folder = Path(running.stdout.readline().strip())
    assert folder not in left_behind()
    running.kill()
    running.communicate()
    assert folder in left_behind()
    assert folder in sweep()
    assert not folder.exists()
