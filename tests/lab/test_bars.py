"""Bars at one size: the fastest at the top, from zero on, every time written."""

from __future__ import annotations

from matplotlib.figure import Figure

from tutti.lab.bars import Bar, draw_bars, height_of_bars


def test_the_fastest_is_at_the_top_and_every_time_is_written() -> None:
    axes = Figure().add_subplot()
    draw_bars(axes, [Bar("slow", 4e-3, "red", "white"), Bar("fast", 1e-3, "blue", "blue")])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fast", "slow"]
    assert axes.yaxis_inverted()
    assert [text.get_text() for text in axes.texts] == ["1.00 ms", "4.00 ms"]
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlim()[1] > 4e-3


def test_more_bars_take_more_room_but_few_are_no_walls() -> None:
    assert height_of_bars(20) > height_of_bars(10)
    assert height_of_bars(1) == height_of_bars(3)
