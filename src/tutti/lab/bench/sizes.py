"""The sizes of a benchmark from one word: `4KiB:64MiB:x4` (from, to, factor), `4KiB,1MiB`, or both joined by commas."""

from __future__ import annotations

import re

from tutti.errors import UserError
from tutti.spec import Bytes, parse_quantity

_FACTOR = 4  # where none is given
_MOST = 1000  # sizes; more are a slip of the pen


def parse_sizes(text: str) -> tuple[int, ...]:
    """In rising order, each once."""
    sizes = {size for part in text.split(",") for size in _parse_part(part.strip())}
    if len(sizes) > _MOST:
        raise UserError(f"--sizes {text} are {len(sizes)} sizes; take at most {_MOST}")
    return tuple(sorted(sizes))


def _parse_part(part: str) -> list[int]:
    first, *more = part.split(":")
    if len(more) > 2:
        raise UserError(f"--sizes takes FROM:TO:xFACTOR such as 4KiB:64MiB:x4, or sizes with commas, not '{part}'")
    begin = _parse_size(first)
    if not more:
        return [begin]
    end = _parse_size(more[0])
    if end < begin:
        raise UserError(f"--sizes {part} ends before it begins; write the smaller size first")
    return _multiply(begin, end, _parse_factor(more[1]) if len(more) == 2 else _FACTOR)


def _multiply(begin: int, end: int, factor: float) -> list[int]:
    sizes = [begin]
    while (following := max(sizes[-1] + 1, int(sizes[-1] * factor))) <= end and len(sizes) <= _MOST:
        sizes.append(following)
    return sizes


def _parse_size(word: str) -> int:
    size = int(parse_quantity(word, Bytes, "--sizes"))
    if size < 1:
        raise UserError("--sizes takes sizes from 1 byte, such as 4KiB")
    return size


def _parse_factor(word: str) -> float:
    match = re.fullmatch(r"x(\d+\.?\d*)", word)
    if match is None or float(match[1]) <= 1:
        raise UserError(f"--sizes multiplies by a factor above 1 such as x4, not '{word}'")
    return float(match[1])
