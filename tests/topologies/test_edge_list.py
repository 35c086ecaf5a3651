"""Links that are typed, or read from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti.errors import UserError
from tutti.spec import SpecError, parse
from tutti.topologies.base import Topology
from tutti.topologies.edge_list import EdgeList


def test_ways_and_links() -> None:
    topology = EdgeList("0-1-2+1-3")
    assert [topology.peers(rank, 4) for rank in range(4)] == [[1], [0, 2, 3], [1], [1]]


def test_a_link_that_is_named_twice_is_one_link() -> None:
    assert EdgeList("0-1+1-0+0-1").peers(0, 2) == [1]


def test_a_file_becomes_its_text(tmp_path: Path) -> None:
    """So that a record or another machine does not need the file."""
    path = tmp_path / "graph.txt"
    path.write_text("# a triangle with a tail\n0 1\n1, 2\n\n2-0   # closed\n2\t3\n")
    topology = parse(f"edge-list({path})", Topology)
    path.unlink()
    assert str(topology) == "edge-list(0-1+1-2+2-0+2-3)"
    assert topology.peers(2, 4) == [0, 1, 3]
    assert parse(str(topology), Topology) == topology


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0 1\n2\n", "line 2: a link is two workers, such as 0 1, not '2'"),
        ("0 one\n", "line 1: a link is two workers, such as 0 1, not '0 one'"),
        ("# nothing\n", "holds no link: write two workers in each line, such as 0 1"),
        ("0 1\n1 1\n", "link worker 1 with itself: a link is between two, such as 0-1"),
        ("0 1\n3 1\n", "have no link for worker 2, and workers are numbered from 0 without a gap"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(text)
    with pytest.raises(SpecError, match=sentence):
        parse(f"edge-list({path})", Topology)


@pytest.mark.parametrize(
    "text", ["0", "-0", "0-", "0--1", "a-b", "0-1+", "+0-1", "0-1.5", "0->1", "0-1;1-2", "0–1", "missing.txt", "/"]
)
def test_neither_links_nor_a_file(text: str) -> None:
    with pytest.raises(SpecError, match="are neither links such as 0-1-2"):
        parse(f"edge-list({text})", Topology)


def test_links_are_joined_by_plus() -> None:
    with pytest.raises(SpecError, match=r"'edge-list' takes at most 1 argument, as in edge-list\(0-1-2\+1-3\)"):
        parse("edge-list(0-1, 1-2)", Topology)


@pytest.mark.parametrize(("text", "missing"), [("1-2-3-4", 0), ("0-1-3", 2), ("0-1-2-99999999999", 3)])
def test_workers_are_numbered_from_0_without_a_gap(text: str, missing: int) -> None:
    sentence = rf"have no link for worker {missing}, and workers are numbered from 0 without a gap: add one or renumber"
    with pytest.raises(SpecError, match=sentence):
        parse(f"edge-list({text})", Topology)


def test_nobody_is_linked_with_itself() -> None:
    with pytest.raises(SpecError, match="link worker 1 with itself: a link is between two, such as 0-1"):
        parse("edge-list(0-1-1-2)", Topology)


def test_the_number_of_workers_is_that_of_the_links() -> None:
    with pytest.raises(UserError, match=r"names workers 0 to 3: it needs 4 workers, not 3"):
        EdgeList("0-1-2-3").check(3)
    with pytest.raises(UserError, match=r"names workers 0 to 3: it needs 4 workers, not 8"):
        EdgeList("0-1-2-3").check(8)
    EdgeList("0-1-2-3").check(4)


def test_nobody_may_be_left_apart() -> None:
    with pytest.raises(UserError, match="has no way from worker 0 to worker 2: add a link, such as 0-2"):
        EdgeList("0-1+2-3").check(4)
    EdgeList("0-1+2-3+0-2").check(4)


def test_only_a_regular_file_of_a_bounded_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("0 1\n" * 300_000)
    (tmp_path / "many").write_text("".join(f"{i} {i + 1}\n" for i in range(20_000)))
    for path, reason in (("/dev/zero", "no regular file"), (tmp_path / "long", "at most 1,048,576 are read")):
        with pytest.raises(SpecError, match=reason):
            parse(f"edge-list({path})", Topology)
    with pytest.raises(SpecError, match="holds 20,000 links, more than a spec can"):
        parse(f"edge-list({tmp_path / 'many'})", Topology)
