"""The scripts in examples/ run as their first lines say, and the two of a pair learn the same."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from example_runs import EXAMPLES, losses, start, start_plainly

LANGUAGE = ("--steps", "6", "--every", "3", "--batch", "4", "--context", "16", "--width", "16", "--layers", "1")


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text((EXAMPLES / "language_model_ddp.py").read_text())
    return str(path)


def test_the_diffs_in_the_readme_are_complete() -> None:
    module = runpy.run_path(str(EXAMPLES / "show_diffs.py"))
    assert module["make_readme"]() == (EXAMPLES / "README.md").read_text(), "run `python examples/show_diffs.py`"


def test_language_model_learns_as_with_ddp(tmp_path: Path, text: str) -> None:
    args = ("--text", text, *LANGUAGE)
    ddp = start("language_model_ddp.py", tmp_path, *args, "--out", "ddp")
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ours = start_plainly(tmp_path, *command, str(EXAMPLES / "language_model_tutti.py"), *args, "--out", "ours")
    expected, found = losses(ddp.wait()), losses(ours.wait())
    assert len(found) == 6
    assert found == [pytest.approx(row, rel=1e-4) for row in expected]


def test_language_model_that_was_killed_goes_on_with_the_same_bits(tmp_path: Path, text: str) -> None:
    args = ("--text", text, *LANGUAGE, "--steps", "9", "--bfloat16", "--algorithm", "relay-sgd")
    whole = start("language_model_tutti.py", tmp_path, *args, "--out", "whole")
    start("language_model_tutti.py", tmp_path, *args, "--out", "killed").kill_after("step 4")
    rest = start("language_model_tutti.py", tmp_path, *args, "--out", "killed", "--resume").wait()
    lines, found = ([line for line in each.splitlines() if line] for each in (whole.wait(), rest))
    assert found == lines[-len(found) :]
    assert found[0].startswith(("step 4 ", "step 7 "))  # whichever checkpoint was the last before the end


def test_gan_learns_as_with_ddp(tmp_path: Path) -> None:
    args = ("--steps", "5", "--batch", "8", "--out")
    ddp, ours = start("gan_ddp.py", tmp_path, *args, "ddp.pt"), start("gan_tutti.py", tmp_path, *args, "ours.pt")
    expected, found = losses(ddp.wait()), losses(ours.wait())
    assert len(found) == 5
    assert found == [pytest.approx(row, rel=1e-4) for row in expected]
    assert (tmp_path / "ours.pt").exists()


def test_snapshots_learn_as_with_ddp_also_started_again(tmp_path: Path) -> None:
    args = ("--batch", "128", "--epochs")
    ddp = start_plainly(tmp_path, str(EXAMPLES / "snapshots_ddp.py"), *args, "2")
    ours = "".join(start_plainly(tmp_path, str(EXAMPLES / "snapshots_tutti.py"), *args, n).wait() for n in "12")
    assert losses(ours) == [pytest.approx(row, rel=1e-4) for row in losses(ddp.wait())]
    assert len(losses(ours)) == 2
