"""Fields that are members, required ones first."""

from __future__ import annotations

from dataclasses import dataclass

from tutti.creatures.base import Creature

from tutti.spec import Count, part


@dataclass
class Whale(Creature):
    years: Count
    first_calf: Creature
    second_calf: Creature = part(Creature, "ant")
    friend: Creature | None = None
