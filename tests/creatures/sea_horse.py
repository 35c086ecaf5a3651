"""Fields of every plain kind, all with defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tutti.creatures.base import Creature

from tutti.spec import Bytes, Count, Range, Seconds, Sizes, Unit

Rate = Annotated[float, Unit("a rate", (("bit", 1), ("Kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)), "100Mbit")]
Share = Annotated[float, Unit("a share", (("%", 0.01),), "1%"), Range(0, 1)]


@dataclass
class SeaHorse(Creature):
    size: Bytes = 2**20
    pause: Seconds = 0.0
    rate: Rate = 1e9
    share: Share = 1.0
    shape: Sizes = (3, 32, 32)
    seed: int = 0
    count: Count = 1
    factor: float = 0.5
    below: Annotated[float, Range(most=0)] = 0.0
    even_number: bool = False
    mood: Literal["calm", "wild"] = "calm"
    label: str = "none-yet"
    limit: int | None = None
    small: Annotated[Bytes, Range(least=8)] = 64
    reach: Bytes | Literal["auto"] = 2**10
    colour: Literal["red", "blue"] | None = None

    def __post_init__(self) -> None:
        if self.seed == 13:
            raise ValueError("13 brings bad luck")
