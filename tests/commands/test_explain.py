"""`tutti explain`: the figures on the screen and for a program, the picture, and one sentence for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tutti.cli import main

SOURCE = Path(__file__).parent.parent.parent / "src"
ISSUE = ["all-reduce", "--workers", "4", "--bytes", "37MB", "--bandwidth", "1Gbit", "--latency", "0.1ms"]


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *ISSUE]) == 0
    text = capsys.readouterr().out
    assert "all-reduce of 37MB (35.3 MiB) over 4 workers" in text
    assert "where each wins" in text
    assert "document 003" in text
    for route in (
        "ring",
        "star",
        "butterfly",
        "halving-doubling",
        "double-binary-tree",
        "° auto",
        "~ native",
        "† tree, by levels",
    ):
        assert f"\n{route} " in text


def test_json_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, target = tmp_path / "explain.svg", tmp_path / "explain.json"
    assert main(["explain", *ISSUE, "--route", "ring", "star", "--plot", str(plot), "--json", str(target)]) == 0
    assert f"picture: {plot}" in capsys.readouterr().out.replace("\n", "")
    assert ">ring</text>" in plot.read_text()
    rows = json.loads(target.read_text())["routes"]
    assert [row["route"] for row in rows] == ["ring", "star"]
    assert rows[0]["seconds"] == pytest.approx(0.4446)


def test_json_on_standard_output_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "gather", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["op"] == "gather"
    assert found["document_003"] is None
    assert found["bandwidth"] == 125e6


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["allreduce"], "there is no operation 'allreduce'; did you mean 'all-reduce'?"),
        (["all"], "there is no operation 'all'"),
        (["all-reduce", "--route", "rign"], "did you mean 'ring'?"),
        (["gather", "--route", "butterfly"], "'butterfly' has no gather"),
        (
            ["all-reduce", "--workers", "1"],
            "one worker sends nothing, by any route: there is something to explain from --workers 2 on",
        ),
        (["all-reduce", "--workers", "257"], "--workers 257 is more than can be worked out here: take up to 256"),
        (["all-reduce", "--bytes", "0"], "nothing to explain about no bytes"),
        (["all-reduce", "--bytes", "many"], "--bytes takes a size such as 25MiB, not 'many'"),
        (["all-reduce", "--bandwidth", "1000"], "--bandwidth takes a rate such as 100Mbit, not '1000'"),
        (["all-reduce", "--latency", "5"], "--latency takes a time such as 40ms, not '5'"),
        (["all-reduce", "--plot", "a.gif"], "--plot takes a file that ends in .png, .svg or .pdf"),
        (["all-reduce", "--plot", "no/such/a.png"], "there is no folder no/such"),
        (["all-reduce", "--json", "no/such/a.json"], "there is no folder no/such"),
    ],
)
def test_a_mistake_gets_a_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("tutti: ")
    assert sentence in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("command", ["explain", "bench"])
def test_help_has_examples_and_imports_nothing_heavy(command: str) -> None:
    program = (
        "import sys; from tutti.cli import main\n"
        f"try: main([{command!r}, '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'rich', 'matplotlib'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "examples:" in done.stdout
    assert f"tutti {command} " in done.stdout.partition("examples:")[2]
