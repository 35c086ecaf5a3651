"""Reproductions: what a document measured, measured here, with a verdict on everything it claims.

A reproduction is a file of this folder: the jobs to run, and what their records show beside what was published. Ratios
travel from machine to machine, seconds do not.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from matplotlib.patches import Rectangle

from tutti.errors import UserError
from tutti.lab import reproductions
from tutti.lab.experiment import Job, Results
from tutti.lab.report.chart import Key
from tutti.lab.report.parts import Section

Verdict = Literal["reproduced", "not reproduced", "wrong"]


@dataclass(frozen=True)
class Claim:
    """Something the document says, its figure and ours, and what that makes of it."""

    text: str
    published: str
    ours: str
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Story:
    """What the records show: one sentence first, then claim by claim, then tables and figures."""

    finding: str
    claims: Sequence[Claim]
    sections: Sequence[Section] = field(default_factory=list)


class Reproduction(ABC):
    title: ClassVar[str]
    document: ClassVar[str]  # what is reproduced, for a reader who does not have it
    data: ClassVar[tuple[str, ...]]  # the data sets that must be here
    repeats: ClassVar[int] = 1  # where there is time; a quick one runs everything once

    @abstractmethod
    def jobs(self, quick: bool) -> list[Job]:
        """What to run; a quick one ends within ten minutes on two cores."""

    @abstractmethod
    def tell(self, results: Results) -> Story:
        """Read the records."""


def largest(values: Iterable[float]) -> float:
    """nan where any of them is, which `max` would pass over."""
    found = list(values)
    return math.nan if any(map(math.isnan, found)) else max(found)


def patch_key(text: str, fill: Any) -> Key:
    """A line of a legend for something filled with this colour."""
    return Key(text, lambda: Rectangle((0, 0), 1, 1, facecolor=fill, edgecolor="none"))


def names() -> list[str]:
    found = (info.name for info in pkgutil.iter_modules(reproductions.__path__))
    return [name.replace("_", "-") for name in found if name != "base"]


def find(name: str) -> Reproduction:
    if name not in names():
        raise UserError(f"there is no reproduction '{name}'; there is {', '.join(names())}")
    module = importlib.import_module(f"tutti.lab.reproductions.{name.replace('-', '_')}")
    cls = next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Reproduction) and value.__module__ == module.__name__
    )
    return cls()
