"""Children of n are 2n+1 and 2n+2."""

from __future__ import annotations

import pytest

from tutti.topologies.base import find_parents
from tutti.topologies.binary_tree import BinaryTree


def test_children() -> None:
    assert BinaryTree().peers(0, 7) == [1, 2]
    assert BinaryTree().peers(2, 7) == [0, 5, 6]
    assert BinaryTree().peers(2, 6) == [0, 5]
    assert BinaryTree().peers(6, 7) == [2]


@pytest.mark.parametrize("size", range(1, 34))
def test_parents(size: int) -> None:
    assert find_parents(BinaryTree(), size) == [-1, *((rank - 1) // 2 for rank in range(1, size))]
