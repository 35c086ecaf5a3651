"""Everybody with everybody."""

from __future__ import annotations

import numpy as np

from tutti.graph import make_mixing
from tutti.topologies.complete import Complete


def test_one_round_gives_the_mean() -> None:
    values = np.arange(5.0)
    assert np.allclose(make_mixing(Complete(), 5) @ values, values.mean())
