"""`tutti catalogue` as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tutti.cli import main
from tutti.lab.catalogue import read_catalogue
from tutti.lab.catalogue_markdown import make_markdown

ROOT = Path(__file__).parent.parent.parent


def test_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue"]) == 0
    text = capsys.readouterr().out
    for word in ("ALGORITHMS", "PRESETS", "gradient-average", "weighted-mean", "lenet-5", "synthetic"):
        assert word in text
    assert "tutti catalogue NAME" in text


def test_an_axis(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "collectives"]) == 0
    text = capsys.readouterr().out
    assert "busiest link" in text
    assert "AGGREGATORS" not in text


def test_a_member(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "ring"]) == 0
    text = capsys.readouterr().out
    assert "short for  gradient-average(all-reduce(ring), overlap=false)" in text
    assert "rounds 2(n-1), bytes per worker and direction 2(n-1)/n * S" in text
    assert "star" not in text


def test_anything_else_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "rign"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error == "tutti: there is no axis or member 'rign'; did you mean 'ring'?\n"


def test_json_on_standard_output_is_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "ring", "--json", "-"]) == 0
    presets, collectives, _ = json.loads(capsys.readouterr().out)
    assert presets["pages"][0]["spec"] == "gradient-average(all-reduce(ring), overlap=false)"
    assert collectives["pages"][0]["parameters"] == [{"name": "segment", "kind": "size", "default": "2MiB"}]
    assert set(collectives["pages"][0]["prices"][0]) == {"spec", "workers", "rounds", "busiest", "total"}


def test_json_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "--json", str(tmp_path / "catalogue.json")]) == 0
    assert json.loads((tmp_path / "catalogue.json").read_text())[0]["axis"] == "algorithms"
    assert "ALGORITHMS" in capsys.readouterr().out


def test_json_that_cannot_be_written_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "--json", str(tmp_path / "nowhere" / "catalogue.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "--markdown"]) == 0
    assert capsys.readouterr().out == make_markdown(read_catalogue())


def test_markdown_and_json_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["catalogue", "--markdown", "--json", "-"])
    assert end.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_help_needs_neither_torch_nor_rich() -> None:
    program = (
        "import sys; from tutti.cli import main\n"
        "try: main(['catalogue', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "tutti catalogue ring" in done.stdout
