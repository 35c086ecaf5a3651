"""`tutti topology` as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tutti.cli import main
from tutti.spec import names

ROOT = Path(__file__).parent.parent.parent


def test_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in names("topologies"))
    assert "over 8 workers" in text
    assert "spectral gap" in text


def test_one_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "torus", "--workers", "6"]) == 0
    text = capsys.readouterr().out
    for words in ("torus over 6 workers", "degree        3", "spectral gap", "mixing matrix (metropolis)", "1/4"):
        assert words in text


def test_spread(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "chain", "--spread", "--from", "3", "--rounds", "5"]) == 0
    text = capsys.readouterr().out
    assert "the share of worker 3's message" in text
    assert "Relay: everybody has exactly 1/8 after 4 rounds" in text
    assert "       5 " in text
    assert "       6 " not in text


def test_json_on_standard_output_is_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "double-binary-tree", "--workers", "5", "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["spec"], figures["workers"], figures["links"]) == ("double-binary-tree", 5, 8)
    assert [len(graph["peers"]) for graph in figures["graphs"]] == [5, 5]
    assert main(["topology", "ring", "--spread", "--json", "-"]) == 0
    shares = json.loads(capsys.readouterr().out)
    assert shares["gossip"][0] == [1.0, *[0.0] * 7]
    assert shares["relay_rounds"] == 4
    assert main(["topology", "--workers", "4", "--json", "-"]) == 0
    assert {each["spec"] for each in json.loads(capsys.readouterr().out)} >= {"ring", "hypercube"}


@pytest.mark.parametrize("more", [[], ["--spread"]])
def test_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    assert main(["topology", "ring", "--png", str(png), "--svg", str(svg), *more]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
    assert f"drawn in {png}" in capsys.readouterr().out.replace("\n", "")
    assert sorted(tmp_path.iterdir()) == [png, svg]


def test_edges_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("0 1\n1 2\n")
    assert main(["topology", f"edge-list({tmp_path / 'mine.txt'})", "--workers", "3"]) == 0
    assert "edge-list(0-1+1-2) over 3 workers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rign"], "there is no topology 'rign'; did you mean 'ring'?"),
        (["hypercube", "--workers", "6"], "needs a power of two of workers, such as 4 or 8, not 6"),
        (["chain", "--mixing", "uniform"], "would not keep the mean"),
        (["ring", "--spread", "--from", "8"], "there is no worker 8 among 8"),
        (["ring", "--from", "1"], "--from belongs to --spread"),
        (["ring", "--rounds", "3"], "--rounds belongs to --spread"),
        (["--png", "all.png"], "a drawing needs the NAME of a topology"),
        (["--spread"], "a drawing needs the NAME of a topology"),
        (["ring", "--workers", "513"], "more than can be shown: take up to 512"),
        (["ring", "--png", "nowhere/ring.png"], "there is no folder nowhere for --png"),
    ],
)
def test_mistakes(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", *words]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("tutti: ")
    assert sentence in error


def test_help_needs_neither_torch_nor_rich() -> None:
    program = (
        "import sys; from tutti.cli import main\n"
        "try: main(['topology', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'rich', 'matplotlib', 'numpy'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "tutti topology torus --workers 12" in done.stdout


def test_figures_need_neither_torch_nor_matplotlib() -> None:
    """So they are there at once."""
    program = (
        "import sys; from tutti.cli import main\n"
        "assert main(['topology', 'ring']) == 0\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_a_picture_has_the_ending_of_its_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "ring", "--png", str(tmp_path / "ring.gif")]) == 2
    assert "--png takes a file that ends in .png, not" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
