"""Figures over a parameter: a line per way to do it, a band for the spread over the seeds, a panel per condition.

The band reaches one standard deviation up and down. What has no figure (a run that diverged) is no point of a line; a
line of one point alone is a mark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from tutti.lab.labels import join
from tutti.lab.picture import line_look, mark_powers
from tutti.lab.report.chart import Chart, is_narrow, line_key
from tutti.lab.units import format_number

Scale = Literal["plain", "whole", "factors", "named"]
_MARKS = 8  # on a line with many points
_FEW = 9  # values that can all be written along an axis
_ROOM = 0.06  # of the axis, left and right of the points
_HEIGHT, _NARROW_HEIGHT = 300, 250


@dataclass(frozen=True)
class Point:
    """Mean and deviation of a figure at one value of the parameter."""

    x: float
    mean: float
    deviation: float = 0.0


@dataclass(frozen=True)
class Line:
    """`index` is how it looks (lab/picture.py), the same in every panel."""

    label: str
    points: Sequence[Point]
    index: int

    @property
    def drawn(self) -> list[Point]:
        return sorted((point for point in self.points if math.isfinite(point.mean)), key=lambda point: point.x)


@dataclass(frozen=True)
class Across:
    """The parameter: what it is called, how its values follow each other (`named`: as they come, at equal distances),
    and how a value is written."""

    name: str
    scale: Scale = "plain"
    labels: Mapping[float, str] | None = None  # of values that are not written as numbers


def make_series(
    title: str, panels: Mapping[str, Sequence[Line]], across: Across, up: str, caption: str, up_factors: bool = False
) -> Chart:
    """`up` is what the lines show; with `up_factors` on a logarithmic axis. A panel's name stands over it where there
    are several."""
    keys = {line.label: line_key(line.label, line.index) for lines in panels.values() for line in lines if line.drawn}
    draw = [
        partial(_draw, name if len(panels) > 1 else "", lines, across, up, up_factors) for name, lines in panels.items()
    ]
    spoken = f"{caption} {'. '.join(_say(name, lines) for name, lines in panels.items())}."
    return Chart(title, draw, caption, spoken, [*keys.values()], _HEIGHT, _NARROW_HEIGHT, shared=True)


def _say(name: str, lines: Sequence[Line]) -> str:
    ends = [f"{line.label} {format_number(line.drawn[-1].mean)}" for line in lines if line.drawn]
    return f"{name}: at the end {join(ends)}" if ends else f"{name}: nothing to show"


def _draw(name: str, lines: Sequence[Line], across: Across, up: str, up_factors: bool, axes: Axes) -> None:
    axes.grid(axis="y")
    for line in lines:
        _draw_line(axes, line)
    if name:
        axes.set_title(name, fontsize=10, loc="left")
    axes.set_ylabel(up)
    axes.set_xlabel(across.name)
    values = sorted({point.x for line in lines for point in line.points})
    if values:
        _scale_across(axes, across, values)
    if up_factors and any(line.drawn for line in lines):
        axes.set_yscale("log")
        low, high = axes.dataLim.intervaly
        mark_powers(axes.yaxis, high / low)
    elif not up_factors:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _draw_line(axes: Axes, line: Line) -> None:
    points = line.drawn
    if not points:
        return
    across, means = [point.x for point in points], [point.mean for point in points]
    look = {**line_look(line.index), "markersize": 4, "linewidth": 1.5, "markevery": max(1, len(points) // _MARKS)}
    axes.plot(across, means, **look)
    if any(point.deviation for point in points):
        low, high = ([point.mean + sign * point.deviation for point in points] for sign in (-1, 1))
        axes.fill_between(across, low, high, color=look["color"], alpha=0.16, linewidth=0)


def _scale_across(axes: Axes, across: Across, values: list[float]) -> None:
    least, most = values[0], values[-1]
    if across.scale == "factors" and least > 0:
        axes.set_xscale("log")
        room = (most / least) ** _ROOM if most > least else 2.0
        axes.set_xlim(least / room, most * room)
    else:
        room = _ROOM * (most - least) or 0.5
        axes.set_xlim(least - room, most + room)
    if across.scale == "whole":
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        return
    every = math.ceil(len(values) / _FEW) if across.labels is None else 1
    axes.xaxis.set_major_locator(FixedLocator(values[::every]))
    if across.labels is not None and is_narrow(axes):
        axes.tick_params(axis="x", labelrotation=90)
    axes.xaxis.set_minor_locator(NullLocator())
    ending = "-" if is_narrow(axes) else "-\n"  # names lie beside each other, or stand upright
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _write(value, across).replace("-", ending)))


def _write(value: float, across: Across) -> str:
    if across.labels is not None:
        return next((text for at, text in across.labels.items() if math.isclose(at, value)), "")
    return f"{value:g}"
