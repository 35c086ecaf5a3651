"""Hosts: what their spec means, training on them, and what is left when a run ends in whatever way."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts_here import (
    groups_of,
    is_alive,
    machine_links,
    needs_hosts,
    needs_quota,
    run_inside,
    start,
    tutti,
    wait_until,
    workers_of,
)

from tutti.errors import UserError
from tutti.hosts.quota import Quota
from tutti.lab.network import find_doubts
from tutti.lab.record import Record
from tutti.networks.base import Network
from tutti.networks.hosts import Hosts
from tutti.spec import SpecError, parse

NETWORK = "hosts(40Mbit, cpu=0.4)"  # little, so that a busy machine can carry it
WORK = ("--task", "synthetic(shape=1x32x32, samples=64)", "--model", "lenet-5", "--workers", "2", "--quiet")
ENDLESS = ("-m", "tutti", "run", "ddp", "--network", NETWORK, *WORK, "--steps", "1000000")


# --- the spec --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "hosts",
        "hosts(1Gbit)",
        "hosts(200Mbit, cpu=0.4)",
        "hosts(100Mbit, cpu=1, latency=5ms, slow-rate=10Mbit, slow-cpu=0.5)",
        "hosts(cpu=0.25)",
        "hosts(latency=0.5ms)",
    ],
)
def test_its_text_reads_back(text: str) -> None:
    assert str(parse(text, Network)) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hosts(200)", "takes a rate such as 100Mbit, or none, not '200'"),
        ("hosts(200MB)", "takes a rate such as 100Mbit, or none, not '200MB'"),
        ("hosts(200Mbps)", "takes a rate such as 100Mbit, or none, not '200Mbps'"),
        ("hosts(0Mbit)", "must be between"),
        ("hosts(1000Gbit)", "must be between"),
        ("hosts(cpu=0)", "must be between"),
        ("hosts(cpu=half)", "takes a number"),
        ("hosts(latency=5)", "takes a time such as 40ms, not '5'"),
        ("hosts(latency=11s)", "must be"),
        ("hosts(slow=1Mbit)", "slow"),
        ("host", "did you mean 'hosts'?"),
    ],
)
def test_a_wrong_spec_gets_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SpecError) as error:
        parse(text, Network)
    assert sentence in error.value.message


def test_the_last_host_is_the_slow_one() -> None:
    hosts = Hosts(rate=1e9, cpu=0.5, slow_rate=1e7, slow_cpu=0.25)
    assert [hosts.rate_of(host, 3) for host in range(3)] == [1e9, 1e9, 1e7]
    assert [hosts.cpu_of(host, 3) for host in range(3)] == [0.5, 0.5, 0.25]
    assert (hosts.rate_of(0, 1), hosts.cpu_of(0, 1)) == (1e7, 0.25)
    assert [Hosts(slow_rate=1e7).rate_of(host, 2) for host in range(2)] == [None, 1e7]


def test_more_than_the_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    Hosts(cpu=1).check(4)
    Hosts(cpu=1.3, slow_cpu=0.1).check(4)
    Hosts().check(200)
    with pytest.raises(UserError, match=r"^3 hosts with 4.5 cores .* fit on 4 cores; ask for cpu=1.33 at most$"):
        Hosts(cpu=1.5).check(3)
    with pytest.raises(UserError, match=r"^2 hosts with 5 cores between them do not fit on 4 cores; .* cpu=2 at most$"):
        Hosts(slow_cpu=5).check(2)
    with pytest.raises(UserError, match=r"^'hosts' has room for 200 hosts, not 201$"):
        Hosts().check(201)


# --- one at a time ---------------------------------------------------------------------------------------------------


@needs_hosts
@needs_quota
def test_what_it_opens_is_what_was_asked_for() -> None:
    result = run_inside("""
        import dataclasses, json, os
        from pathlib import Path
        from tutti.networks.base import Network
        from tutti.spec import parse

        network = parse("hosts(40Mbit, cpu=0.3, slow-rate=20Mbit, slow-cpu=0.2)", Network)
        network.enter()
        with network.open(2) as fabric:
            folders = [Path(door.quota) for door in fabric.doors]
            limits = []
            for folder in folders:
                if (folder / "cpu.max").exists():
                    limits.append(int((folder / "cpu.max").read_text().split()[0]))
                else:
                    limits.append(int((folder / "cpu.cfs_quota_us").read_text()))
            measured = fabric.description["measured"]
            result = {
                "asked": fabric.description["asked"],
                "limits": limits,
                "rates": [row["asked"] for row in measured],
                "cpus": [row["cpu_asked"] for row in measured],
                "threads": fabric.threads,
                "interfaces": [(door.interface, door.own_interface) for door in fabric.doors],
            }
        result["left"] = [str(folder) for folder in folders if folder.exists()]
    """)
    assert result == {
        "asked": "hosts(40Mbit, cpu=0.3, slow-rate=20Mbit, slow-cpu=0.2)",
        "limits": [6000, 4000],
        "rates": [4e7, 2e7],
        "cpus": [0.3, 0.2],
        "threads": 1,
        "interfaces": [["eth0", True], ["eth0", True]],
        "left": [],
    }


@needs_hosts
@needs_quota
def test_a_quota_that_cannot_be_made_takes_everything_down() -> None:
    result = run_inside("""
        import os
        from tutti.errors import UserError
        from tutti.hosts import quota
        from tutti.networks.hosts import Hosts

        made, real = [], quota.Quota.make
        def make(label, cpus):
            if made:
                raise UserError("no more")
            made.append(real(label, cpus))
            return made[0]
        quota.Quota.make = make
        before = len(os.listdir("/proc/self/fd"))
        try:
            with Hosts(cpu=0.2).open(2):
                said = ""
        except UserError as error:
            said = str(error)
        result = [said, made[0].folder.exists(), len(os.listdir("/proc/self/fd")) - before]
    """)
    assert result == ["no more", False, 0]


@needs_hosts
@needs_quota
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_whoever_is_told_to_end_while_measuring_takes_everything_down(number: signal.Signals) -> None:
    running = start("-m", "tutti", "net", "try", "hosts(20Mbit, cpu=0.2)", "--workers", "2")
    assert wait_until(lambda: len(groups_of(running.pid)) == 2, 20)
    os.kill(running.pid, number)
    printed, error = running.communicate(timeout=20)
    assert (running.returncode, printed) == (130, "")
    assert error.startswith("tutti: interrupted")
    assert groups_of(running.pid) == []


REFUSALS = {
    "threads": (["--engine", "threads"], {}, "needs workers that are processes; leave --engine threads out"),
    "interface": (
        ["--interface", "lo"],
        {},
        "gives every worker an interface of its own; leave --interface out",
    ),
    "nodes": (["--nodes", "2", "--master", "x:1"], {}, "makes its own hosts on this machine, so tutti starts"),
    "torchrun": ([], {"RANK": "0", "WORLD_SIZE": "2"}, "so tutti starts the workers itself"),
    "cores": (["--network", "hosts(cpu=700)"], {}, "2 hosts with 1400 cores between them do not fit on"),
    "unit": (["--network", "hosts(200Mb)"], {}, "takes a rate such as 100Mbit, or none, not '200Mb'"),
    "rate": (["--network", "hosts(100Gbit, cpu=0.3)"], {}, "Mbit/s where 100,000.0 were asked for"),
}


@needs_hosts
@needs_quota
def test_what_cannot_work_is_refused_in_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """One process for all of them: importing torch takes longer than being refused."""
    cases = [([*extra], environment) for extra, environment, _ in REFUSALS.values()]
    result = run_inside(f"""
        import contextlib, io, os
        from tutti.cli import main
        from tutti.hosts import measure, quota
        measure._LOOKS = 2
        result = []
        for extra, environment in {cases!r}:
            os.environ.update(environment)
            network = [] if "--network" in extra else ["--network", {NETWORK!r}]
            with contextlib.redirect_stderr(io.StringIO()) as said:
                code = main(["run", "ddp", *network, *extra, *{WORK!r}, "--steps", "1", "--out", {str(tmp_path)!r}])
            for key in environment:
                del os.environ[key]
            left = [str(f) for place in quota.places() for f in place.glob(f"tutti-{{os.getpid()}}-*")]
            result.append([code, said.getvalue(), left])
    """)
    for (_, _, sentence), (code, said, left) in zip(REFUSALS.values(), result, strict=True):
        assert sentence in said
        assert said.startswith("tutti: ")
        assert (code, left) == (2, []), said
        assert said.count("\n") == (3 if "Mb'" in sentence else 1), "one sentence, and the mark below a spec"
    assert list(tmp_path.iterdir()) == []


# --- whole runs ------------------------------------------------------------------------------------------------------


def wait_for_workers(running: subprocess.Popen[str]) -> list[int]:
    """The two workers of a run, once they have entered their hosts."""
    wait_until(lambda: len(workers_of(running.pid)) == 2 or running.poll() is not None, 60)
    assert running.poll() is None, running.communicate()[1]
    return workers_of(running.pid)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A run whose main process was killed in the middle: its number. What it left is there until the end."""
    links = machine_links()
    running = start(*ENDLESS, "--out", str(tmp_path_factory.mktemp("crashed")))
    workers = wait_for_workers(running)
    os.kill(running.pid, signal.SIGKILL)
    running.wait(timeout=10)
    assert len(workers) == 2
    assert wait_until(lambda: not any(map(is_alive, workers)), 10), "they end when their parent is gone"
    running.communicate(timeout=10)
    assert machine_links() == links
    yield running.pid
    for group in groups_of(running.pid):
        Quota(group).close()


@pytest.fixture(scope="module")
def records(crashed: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Two runs on the same hosts, made while a crashed run's quotas were still there."""
    assert len(groups_of(crashed)) == 2
    out = tmp_path_factory.mktemp("records")
    done = tutti("compare", "ddp", "torch-ddp", "--network", NETWORK, *WORK, "--steps", "6", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return {record.name: record for record in map(Record.load, sorted(out.glob("*.json")))}


@needs_hosts
@needs_quota
@pytest.mark.parametrize("name", ["ddp", "torch-ddp"])
def test_the_record_says_what_was_asked_and_measured(records: dict[str, Record], name: str) -> None:
    network = records[name].launch["network"]
    assert network["asked"] == NETWORK
    assert [row["asked"] for row in network["measured"]] == [4e7, 4e7]
    much = 0.5 if find_doubts(network) else 0.05  # a machine that stands still now and then is told of
    for row in network["measured"]:
        assert row["out"] == pytest.approx(4e7, rel=much)
        assert row["in"] == pytest.approx(4e7, rel=much)
        assert 0 < row["cpu"] < 0.5
    assert records[name].launch["threads"] == 1


@needs_hosts
@needs_quota
def test_the_interface_counts_what_was_metered_and_little_more(records: dict[str, Record]) -> None:
    record = records["ddp"]
    assert record.bytes_source == "interface"
    for worker in record.measurements:
        assert 1 < worker["interface_bytes_per_step"] / worker["bytes_per_step"] < 1.15


@needs_hosts
@needs_quota
def test_what_torch_sent_is_read_off_the_interface(records: dict[str, Record]) -> None:
    ours, theirs = records["ddp"], records["torch-ddp"]
    assert theirs.bytes_source == "interface"
    assert theirs.sent_per_step == [worker["interface_bytes_per_step"] for worker in theirs.measurements]
    assert theirs.bytes_per_step == pytest.approx(ours.bytes_per_step, rel=0.2), "the same gradients, ring against ring"


@needs_hosts
@needs_quota
def test_what_a_crash_left_is_removed_by_clean_and_a_living_runs_is_not(
    crashed: int, records: dict[str, Record]
) -> None:
    assert records, "a new run needs no cleaning first"
    left = groups_of(crashed)
    living = Quota.make("living", 0.5)
    try:
        first, second = tutti("net", "clean"), tutti("net", "clean")
        assert living.folder.exists()
    finally:
        living.close()
    assert first.returncode == 0, first.stderr
    assert {f"removed {group}" for group in left} <= set(first.stdout.splitlines())
    assert groups_of(crashed) == []
    assert (second.returncode, second.stdout) == (0, "there was nothing to clean\n")


@needs_hosts
@needs_quota
def test_ctrl_c_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    running = start(*ENDLESS, "--out", str(tmp_path))
    workers = wait_for_workers(running)
    os.killpg(running.pid, signal.SIGINT)
    _, error = running.communicate(timeout=30)
    assert running.returncode == 130
    assert error.endswith("tutti: interrupted; nothing is left running\n")  # behind doubts about a busy machine
    assert "Traceback" not in error
    assert groups_of(running.pid) == []
    assert not any(map(is_alive, workers))
    assert not list(tmp_path.glob("*.json"))
