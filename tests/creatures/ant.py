"""A member without fields."""

from __future__ import annotations

from dataclasses import dataclass

from tutti.creatures.base import Creature


@dataclass
class Ant(Creature):
    pass
