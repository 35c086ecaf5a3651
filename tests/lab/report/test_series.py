"""Charts over a parameter: lines, bands, what has no figure, and what stands along the axis."""

from __future__ import annotations

import math

import pytest
from matplotlib.axes import Axes
from told import lay_out, shown

from tutti.lab.report.chart import Chart
from tutti.lab.report.series import Across, Line, Point, make_series

LINES = [
    Line("one", [Point(0.01, 90, 1), Point(0.02, 95, 2), Point(0.04, math.nan)], 0),
    Line("other", [Point(0.02, 80), Point(0.01, 70)], 1),
    Line("lost", [Point(0.01, math.nan)], 2),
]


def make(scale: str = "factors", **options: object) -> Chart:
    across = Across("learning rate", scale)  # type: ignore[arg-type]
    return make_series("A title", {"a": LINES, "b": LINES[:1]}, across, "accuracy, %", "What it shows.", **options)  # type: ignore[arg-type]


def panels(chart: Chart, narrow: bool = False) -> list[Axes]:
    return lay_out(chart, narrow).axes


def ticks(axes: Axes) -> list[str]:
    return [text.get_text() for text in shown(axes.xaxis)[:-1]]


def test_a_line_per_way_a_panel_per_condition() -> None:
    first, second = panels(make())
    assert [len(axes.lines) for axes in (first, second)] == [2, 1]
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["a", "b"]
    assert [key.text for key in make().keys] == ["one", "other"]


def test_points_go_from_left_to_right_and_what_has_no_figure_is_none() -> None:
    first, _ = panels(make())
    assert [list(line.get_xdata()) for line in first.lines] == [[0.01, 0.02], [0.01, 0.02]]
    assert list(first.lines[1].get_ydata()) == [70, 80]


def test_a_band_reaches_one_deviation_up_and_down() -> None:
    first, _ = panels(make())
    (band,) = first.collections
    box = band.get_paths()[0].get_extents()
    assert (box.y0, box.y1) == (89, 97)


@pytest.mark.parametrize("narrow", [False, True])
def test_every_value_of_the_parameter_stands_along_the_axis(narrow: bool) -> None:
    assert ticks(panels(make(), narrow)[0]) == ["0.01", "0.02", "0.04"]


def test_many_values_are_thinned_out() -> None:
    line = Line("one", [Point(2.0**power, power) for power in range(24)], 0)
    chart = make_series("T", {"a": [line]}, Across("x", "factors"), "y", "C.")
    (axes,) = panels(chart)
    assert len(ticks(axes)) == 8
    assert axes.get_title(loc="left") == ""  # one panel needs no name


def test_values_may_have_names() -> None:
    line = Line("one", [Point(0, 1), Point(1, 2)], 0)
    chart = make_series("T", {"a": [line]}, Across("graph", "named", {0: "ring", 1: "star"}), "y", "C.")
    assert ticks(panels(chart)[0]) == ["ring", "star"]
    narrow = [text for text in shown(panels(chart, narrow=True)[0].xaxis) if text.get_text() == "ring"]
    assert narrow[0].get_rotation() == 90


def test_a_logarithmic_axis_upwards() -> None:
    line = Line("one", [Point(0, 0.001), Point(1, 10)], 0)
    (axes,) = panels(make_series("T", {"a": [line]}, Across("x"), "y", "C.", up_factors=True))
    assert axes.get_yscale() == "log"


def test_it_is_read_aloud_with_its_ends() -> None:
    assert "a: at the end one 95.0 and other 80.0. b: at the end one 95.0." in make().spoken


def test_nothing_to_show_is_an_empty_panel() -> None:
    chart = make_series("T", {"a": [LINES[2]]}, Across("x"), "y", "C.", up_factors=True)
    assert panels(chart)[0].lines == [] or not list(panels(chart)[0].lines)
    assert "a: nothing to show" in chart.spoken
