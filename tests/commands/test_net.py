"""`tutti net`: a network is tried without training, and what crashed runs left is removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts_here import SOURCE, groups_of, is_alive, needs_hosts, needs_quota, start, tutti, wait_until

from tutti.cli import main
from tutti.hosts import quota
from tutti.hosts.quota import Quota

# A run as it looks when it is killed: two quotas, and a process in one of them that has outlived its parent.
RUN = """
import subprocess, sys, time
from tutti.hosts.quota import Quota
first, second = Quota.make("net0-host0", 0.5), Quota.make("net0-host1", 0.5)
worker = "import sys, time; from pathlib import Path; from tutti.hosts.quota import join; join(Path(sys.argv[1]));"
started = subprocess.Popen([sys.executable, "-c", worker + "time.sleep(60)", str(second.folder)])
while not (second.folder / "cgroup.procs").read_text():
    time.sleep(0.01)
print(started.pid, flush=True)
input()
"""

# --- try -------------------------------------------------------------------------------------------------------------


@needs_hosts
@needs_quota
def test_try_measures_and_shows_a_row_per_host(tmp_path: Path) -> None:
    """Its table is whole where nobody says how wide the place is."""
    spec, target = "hosts(40Mbit, cpu=0.3, slow-rate=20Mbit)", tmp_path / "net.json"
    done = tutti("net", "try", spec, "--workers", "2", "--json", str(target))
    assert done.returncode == 0, done.stderr
    header, _, *rows = done.stdout.splitlines()
    assert header.split("  ")[0] == "host"
    assert [row.split()[:2] for row in rows[:2]] == [["0", "40.0"], ["1", "20.0"]]
    assert spec in done.stdout
    measured = json.loads(target.read_text())
    assert measured["asked"] == spec
    assert [row["asked"] for row in measured["measured"]] == [4e7, 2e7]
    assert [row["cpu_asked"] for row in measured["measured"]] == [0.3, 0.3]


@needs_hosts
def test_json_on_standard_output_is_nothing_but_json() -> None:
    done = tutti("net", "try", "hosts", "--workers", "1", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["asked"] == "hosts"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["try", "loopback"], "there is nothing to try in 'loopback'; ask for hosts"),
        (["try", "hosst"], "did you mean 'hosts'?"),
        (["try", "hosts(10)"], "takes a rate such as 100Mbit, or none, not '10'"),
        (["try", "hosts", "--workers", "201"], "has room for 200 hosts, not 201"),
        (["try", "hosts(cpu=1000)"], "do not fit on"),
        (["try", "hosts", "--json", "no/such/folder.json"], "there is no folder"),
    ],
)
def test_a_mistake_gets_a_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the process has moved anywhere, so that this one can be asked."""
    assert main(["net", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tutti: ")
    assert sentence in error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: ACTION"),
        (["fly"], "there is no action 'fly'; there is try, clean; see tutti net --help"),
        (["try"], "the following arguments are required: SPEC"),
        (["try", "hosts", "--workers", "0"], "takes a whole number from 1, not '0'"),
    ],
)
def test_a_wrong_option_gets_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["net", *arguments])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert sentence in error


@pytest.mark.parametrize("action", [[], ["try"], ["clean"]])
def test_help_has_examples_and_imports_nothing_heavy(action: list[str]) -> None:
    program = (
        "import sys; from tutti.cli import main\n"
        f"try: main({['net', *action, '--help']!r})\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'rich', 'tutti.hosts.namespaces'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert 'tutti net try "hosts(1Gbit, cpu=0.5)"' in done.stdout


# --- clean -----------------------------------------------------------------------------------------------------------


@needs_quota
def test_clean_removes_what_a_killed_run_left_and_what_runs_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    running = start("-c", RUN)
    assert running.stdout is not None
    worker = int(running.stdout.readline())
    mine = Quota.make("living", 0.5)
    try:
        groups = groups_of(running.pid)
        assert len(groups) == 2
        assert main(["net", "clean"]) == 0
        assert str(groups[0]) not in capsys.readouterr().out, "it is alive"
        running.kill()
        running.wait()
        assert main(["net", "clean"]) == 0
        printed = capsys.readouterr().out.splitlines()
        assert {f"removed {group}" for group in groups} <= set(printed)
        assert groups_of(running.pid) == []
        assert wait_until(lambda: not is_alive(worker), 5)
        assert mine.folder.exists()
    finally:
        running.communicate()
        mine.close()
    assert main(["net", "clean"]) == 0
    assert capsys.readouterr().out == "there was nothing to clean\n"


def test_what_clean_cannot_remove_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "sweep", lambda: [Path("/a/tutti-1-1-x")])
    monkeypatch.setattr(quota, "left_behind", lambda: [Path("/a/tutti-2-1-x")])
    assert main(["net", "clean"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "removed /a/tutti-1-1-x\n"
    assert printed.err == "tutti: cannot remove /a/tutti-2-1-x: it is another user's, or still in use\n"
