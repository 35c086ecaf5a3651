"""The base of the tests' axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tutti.spec import Member


@dataclass
class Creature(Member):
    axis: ClassVar[str] = "creatures"
    noun: ClassVar[str] = "creature"
