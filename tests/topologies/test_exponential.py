"""1, 2, 4, ... places ahead."""

from __future__ import annotations

import pytest

from tutti.graph import find_spectral_gap, make_mixing
from tutti.topologies.exponential import Exponential


def test_peers() -> None:
    assert Exponential().peers(0, 8) == [1, 2, 4]
    assert Exponential().peers(6, 8) == [0, 2, 7]
    assert Exponential().peers(0, 6) == [1, 2, 4]
    assert Exponential().peers(0, 5) == [1, 2, 4]
    assert Exponential().peers(0, 4) == [1, 2]


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8, 16, 33])
def test_weights_and_gap_of_the_paper(size: int) -> None:
    """Each weight is 1/(L + 1); the gap is 2/(L + 1) where n is even, with L = ceil(log2 n)."""
    length = (size - 1).bit_length()
    matrix = make_mixing(Exponential(), size)
    assert set(matrix[matrix > 0].round(12)) == {round(1 / (length + 1), 12)}
    if size % 2 == 0:
        assert find_spectral_gap(Exponential(), size)[0] == pytest.approx(2 / (length + 1))
