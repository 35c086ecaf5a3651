"""What routes share: pieces, segments, costs in seconds, rehearsals."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tutti.collectives.base import Cost, Load, bounds, check_divides, count_segments, pieces
from tutti.collectives.star import Star
from tutti.errors import UserError


@pytest.mark.parametrize("size", [1, 2, 3, 16])
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100])
def test_bounds_are_those_of_the_pieces(size: int, length: int) -> None:
    buffer = torch.arange(length)
    edges = bounds(buffer, size)
    parts = pieces(buffer, size)
    assert len(parts) == size
    assert [buffer[begin:end].tolist() for begin, end in pairwise(edges)] == [part.tolist() for part in parts]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_segments_are_as_few_as_can_be() -> None:
    assert [count_segments(nbytes, 100) for nbytes in (0, 1, 100, 101, 200, 200.5)] == [1, 1, 1, 2, 2, 3]


def test_seconds_in_the_alpha_beta_model() -> None:
    assert Cost(rounds=3, busiest=5, total=7, path=100).seconds(latency=0.5, bandwidth=50) == 3.5


def test_what_does_not_divide_is_refused() -> None:
    check_divides(torch.zeros(6), 3)
    with pytest.raises(UserError, match="all-to-all over 4 workers needs a multiple of 4 elements, not 6"):
        check_divides(torch.zeros(6), 4)


def test_loads_of_every_worker() -> None:
    """At a star's root everything meets."""
    assert Star(root=2).loads(3) == [Load(1, 1), Load(1, 1), Load(2, 2)]
    assert Star(root=2).loads(3, "broadcast") == [Load(2, 0), Load(0, 1), Load(0, 1)], "its own root is worker 0"
