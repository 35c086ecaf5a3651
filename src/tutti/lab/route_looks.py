"""How a route's line is drawn: its colour comes from its name, so that a route looks the same in every picture.

`ring(segment=1MiB)` has the ring's colour with another dash; a route that is not in the table has a colour that its
name decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

from tutti.lab.picture import COLOURS, line_look

# A number decides colour, dash and mark: those that are drawn most have a colour each, their kin the same with dashes.
_NUMBERS = {
    "ring": 0,
    "direct": 1,
    "butterfly": 2,
    "star": 3,
    "halving-doubling": 4,
    "double-binary-tree": 5,
    "native": 6,
    "ring-reduce": 7,
    "all-gather": 8,
    "hierarchical": 10,
    "tree": 12,
    "binary-tree": 12,
    "auto": 13,
}


def find_looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Of the routes of one picture: the colour of each is its own, the dash or the mark differs where colours meet."""
    taken: set[int] = set()
    looks: dict[str, dict[str, Any]] = {}
    for name in sorted(dict.fromkeys(names), key=lambda name: (name not in _NUMBERS, name)):
        number = _number_of(name)
        while number in taken:
            number += len(COLOURS)
        taken.add(number)
        looks[name] = line_look(number)
    return looks


def _number_of(name: str) -> int:
    """A name of the table keeps its whole look; specs of a route, and other routes, begin with the dotted line."""
    known = _NUMBERS.get(name)
    if known is not None:
        return known
    head = name.partition("(")[0].strip()
    return 2 * len(COLOURS) + _NUMBERS.get(head, crc32(head.encode())) % len(COLOURS)
