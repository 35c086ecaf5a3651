"""What stands in the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from tutti.lab.topology_figures import measure, measure_all
from tutti.lab.topology_screen import make_details, make_overview, make_spread
from tutti.lab.topology_spread import spread
from tutti.spec import parse
from tutti.topologies.base import Topology


def show(shown: RenderableType, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def details(spec: str, workers: int, step: int = 0) -> str:
    topology = parse(spec, Topology)
    return show(make_details(topology, measure(topology, workers, step=step)))


def shares(spec: str, workers: int, width: int = 110, **more: int) -> str:
    return show(make_spread(spread(parse(spec, Topology), workers, **more)), width)


def test_overview_has_a_row_each_and_says_why_some_have_none() -> None:
    text = show(make_overview(*measure_all(6)))
    assert "over 6 workers, metropolis weights" in text
    ring = next(line for line in text.splitlines() if line.startswith("ring"))
    assert ring.split() == ["ring", "6", "2", "3", "1.80", "0.333"]
    assert "'hypercube' needs a power of two of workers, such as 4 or 8, not 6" in text
    pairing = next(line for line in text.splitlines() if line.startswith("random-pairing"))
    assert "gap over 12 steps" in pairing


def test_figures() -> None:
    text = details("star", 8)
    assert "star over 8 workers" in text
    for words in (
        "links         7",
        "degree        1–7",
        "diameter      2",
        "mean delay    1.75",
        "spectral gap  0.125",
    ):
        assert words in text


def test_the_drawing_stands_beside_the_peers() -> None:
    text = details("torus", 12)
    line = next(line for line in text.splitlines() if " 0 ⠒" in line)
    assert line.split()[-5:] == ["0", "1", "3", "4", "8"]


def test_a_tree_needs_no_list_of_peers() -> None:
    text = details("binary-tree", 7)
    assert "├── 1" in text
    assert "peers\n" not in text


def test_both_trees_stand_side_by_side() -> None:
    text = details("double-binary-tree", 7)
    assert any(line.split() == ["part", "1", "part", "2"] for line in text.splitlines())
    assert any(line.split() == ["3", "4"] for line in text.splitlines())  # the roots


def test_mixing_weights_are_fractions_of_few_workers() -> None:
    text = details("chain", 4)
    rows = [line.split() for line in text.splitlines()[-4:]]
    assert rows[0] == ["0", "2/3", "1/3", "·", "·"]
    assert rows[1] == ["1", "1/3", "1/3", "1/3", "·"]
    assert "mixing matrix" not in details("chain", 9)


def test_a_changing_topology_shows_the_next_steps() -> None:
    text = details("one-peer-exponential", 8, step=1)
    assert "sends in step 1   sends in step 2   sends in step 3" in text
    assert any(line.split()[-4:] == ["0", "2", "4", "1"] for line in text.splitlines())
    assert "mixing matrix (metropolis, step 1)" in text
    assert "1.00 (1.00)" in text


@pytest.mark.parametrize("workers", [1, 2, 40, 73])
def test_any_number_of_workers(workers: int) -> None:
    assert f"ring over {workers} worker" in details("ring", workers)


# --- spread ----------------------------------------------------------------------------------------------------------


def test_shares_side_by_side() -> None:
    text = shares("chain", 8, source=3)
    line = next(line for line in text.splitlines() if line.lstrip().startswith("2 "))
    assert " ".join(line.split()) == "2 ·· ▓▓ ◆◆ ◆◆ ◆◆ ▓▓ ·· ·· 2 ·· ██ ██ ██ ██ ██ ·· ··"
    assert "gossip (metropolis weights)" in text
    assert "relay, on the tree itself" in text
    assert "in parts of 1/8:" in text
    assert "Relay: everybody has exactly 1/8 after 4 rounds" in text


def test_shares_below_each_other_where_it_is_narrow() -> None:
    text = shares("chain", 17, width=80)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    gossip = next(at for at, line in enumerate(lines) if line.startswith("gossip"))
    relay = next(at for at, line in enumerate(lines) if line.startswith("relay"))
    assert relay - gossip > 20


def test_many_workers_have_a_letter_each() -> None:
    text = shares("ring", 40)
    assert next(line for line in text.splitlines() if "round 0" in line).count("·") == 39 * 2


def test_too_many_are_sent_to_a_picture() -> None:
    text = shares("ring", 100)
    assert "--png FILE" in text
    assert "█" not in text
    assert "Relay: everybody has exactly 1/100 after 50 rounds" in text
