"""Two trees: nobody is an inner worker of both, and neither is higher than it must be."""

from __future__ import annotations

import pytest

from tutti.topologies.base import find_parents
from tutti.topologies.double_binary_tree import DoubleBinaryTree

SIZES = pytest.mark.parametrize("size", [*range(1, 34), 100, 255, 256, 257])


def parents(size: int) -> list[list[int]]:
    return [find_parents(DoubleBinaryTree(), size, part) for part in (0, 1)]


def height(tree: list[int]) -> int:
    def depth(rank: int) -> int:
        return 0 if tree[rank] == -1 else 1 + depth(tree[rank])

    return max(depth(rank) for rank in range(len(tree)))


@SIZES
def test_each_part_is_a_tree_with_two_children_at_most(size: int) -> None:
    for part, tree in enumerate(parents(size)):
        degrees = [len(DoubleBinaryTree().peers(rank, size, part=part)) for rank in range(size)]
        assert sum(degrees) == 2 * (size - 1)
        assert max(tree.count(rank) for rank in range(size)) <= 2


@SIZES
def test_nobody_is_inner_in_both(size: int) -> None:
    first, second = ({parent for parent in tree if parent >= 0} for tree in parents(size))
    assert not first & second


@SIZES
def test_as_low_as_a_binary_tree_can_be(size: int) -> None:
    assert [height(tree) for tree in parents(size)] == [size.bit_length() - 1] * 2


@SIZES
def test_the_roots_are_where_parents_end(size: int) -> None:
    assert [DoubleBinaryTree().root(size, part) for part in (0, 1)] == [tree.index(-1) for tree in parents(size)]


@SIZES
def test_everybody_carries_about_the_same(size: int) -> None:
    """Links over both trees: one inner worker's at most, and one leaf's."""
    links = [sum(len(DoubleBinaryTree().peers(rank, size, part=part)) for part in (0, 1)) for rank in range(size)]
    assert max(links) <= 4


def test_seven_workers_as_in_the_paper() -> None:
    """A full tree with its inner workers at odd places, and the same one place further."""
    assert parents(7) == [[1, 3, 1, -1, 5, 3, 5], [6, 2, 4, 2, -1, 6, 4]]
