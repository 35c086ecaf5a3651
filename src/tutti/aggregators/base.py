"""The contract of an aggregator: many contributions in, one result out.

A `linear` aggregator may also run on routes where only partial sums travel: the result is then
sum(w_i x_i) or, when it is `normalised`, sum(w_i x_i) / sum(w_i), with w_i = weight(samples of worker i).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tutti.spec import Member


@dataclass
class Aggregator(Member):
    axis: ClassVar[str] = "aggregators"
    noun: ClassVar[str] = "aggregator"
    linear: ClassVar[bool] = False
    normalised: ClassVar[bool] = True

    @abstractmethod
    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        """A row per worker and a weight per worker -> one row."""

    def weight(self, samples: float) -> float:
        """How much a contribution from so many samples counts."""
        return 1.0
