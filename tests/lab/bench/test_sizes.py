"""Sizes from one word, and one sentence for every mistake in it."""

from __future__ import annotations

import pytest

from tutti.errors import UserError
from tutti.lab.bench.sizes import parse_sizes

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4KiB:64MiB:x4", tuple(4**n * KIB for n in range(1, 9))),
        ("4KiB:64MiB", tuple(4**n * KIB for n in range(1, 9))),
        ("1MiB", (MIB,)),
        ("1MiB,4KiB", (4 * KIB, MIB)),
        ("4KiB, 1MiB:4MiB:x2,1MiB", (4 * KIB, MIB, 2 * MIB, 4 * MIB)),
        ("1KiB:3KiB:x2", (KIB, 2 * KIB)),
        ("1KiB:1KiB:x2", (KIB,)),
        ("100:350:x1.5", (100, 150, 225, 337)),
        ("1MB", (1_000_000,)),
    ],
)
def test_read(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "--sizes takes a size such as 25MiB, not ''"),
        ("4KB:1KB:x2", "ends before it begins"),
        ("4KiB:1MiB:4", "multiplies by a factor above 1 such as x4, not '4'"),
        ("4KiB:1MiB:x1", "multiplies by a factor above 1 such as x4, not 'x1'"),
        ("4KiB:1MiB:x2:3", "takes FROM:TO:xFACTOR such as 4KiB:64MiB:x4"),
        ("4kib", "--sizes takes a size such as 25MiB, not '4kib'"),
        ("0", "takes sizes from 1 byte"),
        ("-4KiB", "--sizes must be at least 0, not -4KiB"),
        ("1:1GiB:x1.0001", "take at most 1000"),
    ],
)
def test_a_mistake_gets_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        parse_sizes(text)
    assert sentence in str(error.value)
