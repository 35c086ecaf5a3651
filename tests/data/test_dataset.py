"""A data set knows how much it is."""

from __future__ import annotations

from sample_data import make_data_set


def test_its_size_is_that_of_its_files() -> None:
    assert make_data_set({"one": b"123", "two": b"4567"}).size == 7
