"""`tutti bench`: rows, tables, files, a wrong route, mistakes, and an interruption that leaves nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hosts_here import needs_hosts, start, tutti
from torch import Tensor

from tutti.cli import main
from tutti.collectives.ring import Ring
from tutti.comm.base import Comm

QUICK = ["--engine", "threads", "--samples", "3", "--sizes", "4KiB,64KiB", "--quiet"]
PUBLIC = {"op", "route", "workers", "bytes", "seconds", "algbw", "busbw", "correct"}


def bench(tmp_path: Path, *arguments: str) -> int:
    return main(["bench", *QUICK, "--workers", "2", "--out", str(tmp_path / "out"), *arguments])


# --- results ---------------------------------------------------------------------------------------------------------


def test_rows_of_every_operation_size_and_route(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    assert bench(tmp_path, "--op", "all-reduce", "gather", "--route", "star", "native", "--json", str(target)) == 0
    rows = json.loads(target.read_text())
    assert [(row["op"], row["bytes"], row["route"]) for row in rows] == [
        (operation, size, route)
        for operation in ("all-reduce", "gather")
        for size in (4096, 65536)
        for route in ("star", "native")
    ]
    for row in rows:
        assert set(row) >= PUBLIC
        assert row["correct"] is True
        assert row["workers"] == 2
        assert row["wire"] == "threads"
        assert row["algbw"] == pytest.approx(row["bytes"] / row["seconds"])
        assert row["busbw"] == pytest.approx(row["algbw"] * (1 if row["op"] == "all-reduce" else 0.5))
        assert row["samples"] == 3


def test_the_tables_the_files_and_the_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "bench.svg"
    assert bench(tmp_path, "--route", "ring", "native", "--dtype", "float32", "float16", "--plot", str(plot)) == 0
    text = capsys.readouterr().out
    assert "all-reduce · 2 workers · float32" in text
    assert "all-reduce · 2 workers · float16" in text
    assert "alone or within noise" in text
    assert ">native</text>" in plot.read_text()
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["bench.json", "bench.png"]
    record = json.loads((out / "bench.json").read_text())
    assert all(len(row["times"]) == 3 for row in record["rows"])
    assert record["networks"] == [{"workers": 2, "asked": "loopback"}]


def test_several_numbers_of_workers_and_all_routes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--sizes", "4KiB", "--samples", "1", "--workers", "2", "3", "--json", "-"]
    assert main(["bench", *QUICK, "--out", str(tmp_path / "out"), *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)
    routes = {row["route"] for row in rows}
    assert {"ring", "star", "butterfly", "double-binary-tree", "native"} <= routes
    assert {(row["workers"], row["route"]) for row in rows} == {(n, route) for n in (2, 3) for route in routes}


def test_a_spec_is_a_route_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "--route", "ring(segment=8KiB)", "--json", "-") == 0
    assert {row["route"] for row in json.loads(capsys.readouterr().out)} == {"ring(segment=8KiB)"}


def test_processes_over_our_wire_and_the_backends(tmp_path: Path) -> None:
    arguments = ["--route", "ring", "native", "--workers", "2", "--sizes", "64KiB", "--samples", "3"]
    done = tutti("bench", *arguments, "--out", str(tmp_path / "out"), "--json", "-")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["route"], row["correct"]) for row in rows] == [("ring", True), ("native", True)]
    assert all(0 < row["floor"] < row["min"] <= row["seconds"] for row in rows)
    assert "1/1 all-reduce float32 on 2 workers: 64.0 KiB" in done.stderr


@needs_hosts
def test_over_links_the_floor_is_theirs(tmp_path: Path) -> None:
    """64 KiB over two hosts at 10 Mbit/s: 1.25 MB per second, and 60 ms on the way, which a busy machine hits too."""
    arguments = ["--route", "ring", "--workers", "2", "--sizes", "64KiB", "--samples", "3", "--quiet"]
    network = "hosts(10Mbit, latency=60ms)"
    done = tutti("bench", *arguments, "--network", network, "--out", str(tmp_path / "out"), "--json", "-")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["network"], row["wire"]) == (network, "tcp")
    assert row["floor"] == pytest.approx(0.06 + 65536 / 1.25e6)
    assert row["predicted"] == pytest.approx(2 * 0.06 + 65536 / 1.25e6)
    assert "busiest link" in done.stderr


def test_a_wrong_route_is_reported_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = Ring.run

    def spoil(self: Ring, comm: Comm, buffer: Tensor, tag: str, *more: Any) -> None:
        honest(self, comm, buffer, tag, *more)
        if comm.rank == 1 and buffer.nbytes > 4096:
            buffer[100] += 1

    monkeypatch.setattr(Ring, "run", spoil)
    target = tmp_path / "rows.json"
    assert bench(tmp_path, "--route", "ring", "star", "--json", str(target)) == 1
    found = {(row["route"], row["bytes"]): row["correct"] for row in json.loads(target.read_text())}
    assert found == {("ring", 4096): True, ("star", 4096): True, ("ring", 65536): False, ("star", 65536): True}
    printed = capsys.readouterr()
    assert "WRONG" in printed.out
    assert "tutti: ring gave a wrong result: all-reduce · 2 workers · float32, 64.0 KiB" in printed.err


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--op", "allreduce"], "there is no operation 'allreduce'"),
        (["--op", "gather", "--route", "butterfly"], "'butterfly' has no gather"),
        (["--route", "rign"], "did you mean 'ring'?"),
        (["--sizes", "1MiB:4KiB"], "ends before it begins"),
        (["--sizes", "4"], "2 workers with a float32 each take 8"),
        (
            ["--workers", "1"],
            "one worker sends nothing, by any route: there is something to measure from --workers 2 on",
        ),
        (["--workers", "2", "1"], "one worker sends nothing"),
        (["--wire", "smoke"], "there is no wire 'smoke'; there is shared, tcp, torch"),
        (["--dtype", "int8"], "there is no dtype 'int8'"),
        (["--network", "hosst"], "did you mean 'hosts'?"),
        (["--plot", "a.gif"], "--plot takes a file that ends in"),
        (["--json", "no/such/rows.json"], "there is no folder no/such"),
    ],
)
def test_a_mistake_gets_a_sentence_and_leaves_nothing(
    tmp_path: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("tutti: ")
    assert sentence in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workers", "0"], "takes a whole number from 1, not '0'"),
        (["--seconds", "0"], "takes a number above 0, not '0'"),
        (["--samples", "3", "--seconds", "1"], "not allowed with"),
    ],
)
def test_a_wrong_option_gets_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", *arguments])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert sentence in error


@needs_hosts
def test_hosts_need_processes(tmp_path: Path) -> None:
    done = tutti("bench", *QUICK, "--network", "hosts(100Mbit)", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "leave --engine threads out" in done.stderr


def test_ctrl_c_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    out, rows = tmp_path / "out", tmp_path / "rows.json"
    arguments = ["--workers", "2", "--samples", "1000000", "--out", str(out), "--json", str(rows)]
    running = start("-m", "tutti", "bench", "--route", "ring", "--sizes", "4KiB", *arguments)
    assert running.stderr is not None
    assert "1/1 all-reduce" in running.stderr.readline()
    os.killpg(running.pid, signal.SIGINT)
    _, error = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "interrupted" in error
    assert "Traceback" not in error
    assert not out.exists()
    assert not rows.exists()
