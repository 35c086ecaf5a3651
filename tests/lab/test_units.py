"""Numbers read as people write them, at every scale and at its edges."""

from __future__ import annotations

import math

import pytest

from tutti.lab.units import NOTHING, common_unit, format_bytes, format_number, format_percent, format_seconds, trim


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (8.557, "8.56"),
        (9.999, "10.0"),
        (999.7, "1000"),
        (49.41, "49.4"),
        (813.4, "813"),
        (7121.04, "7121"),
        (71210, "71,210"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999.6, "0.976 KiB"),
        (370_302, "362 KiB"),
        (2**20, "1.00 MiB"),
        (25 * 2**30, "25.0 GiB"),
    ],
)
def test_sizes(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (0.000085, "85.0 µs"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (61, "61.0 s"),
        (185, "3:05"),
        (3785, "1:03:05"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_ticks_have_no_zeros_that_say_nothing() -> None:
    assert [trim(text) for text in ("10.0 ms", "1.50 s", "100 µs")] == ["10 ms", "1.5 s", "100 µs"]


def test_shares() -> None:
    assert format_percent(0.9694) == "96.9 %"
    assert format_percent(0.814, 0) == "81 %"


@pytest.mark.parametrize("form", [format_number, format_bytes, format_seconds, format_percent])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_known_is_not_made_up(form: object, value: float) -> None:
    assert callable(form)
    assert form(value) == NOTHING


def test_the_largest_time_decides_the_unit() -> None:
    assert common_unit([0.001, math.nan, 2.0]) == (1e-3, "ms")
    assert common_unit([0.001, 20.0]) == (1.0, "s")
    assert common_unit([]) == (1e-3, "ms")
