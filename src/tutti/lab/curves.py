"""Time against size, both logarithmic, one line per route: the figure of `tutti bench` and `tutti explain`.

Where there is a single size, a line would be a point: then every route is a bar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from tutti.errors import UserError
from tutti.lab.bars import Bar, draw_bars, height_of_bars
from tutti.lab.picture import EDGE, GREY, STYLE, WHITE
from tutti.lab.picture import save as save
from tutti.lab.units import format_bytes, format_seconds, trim

FORMATS = (".png", ".svg", ".pdf")
_DPI = 100
_MARKS = 8  # on a line with many points
_MOST_TICKS = 8
_NOTE_LETTER = 0.061  # inches that a letter of the note takes
_LEGEND_LETTER, _LEGEND_LINE = 0.085, 0.9  # inches that a letter and the line in front of them take


@dataclass(frozen=True)
class Curve:
    """A line: bytes and seconds of its points, and how it looks."""

    label: str
    points: Sequence[tuple[float, float]]
    look: dict[str, Any]

    @property
    def plain(self) -> bool:
        """A floor or a formula, no route."""
        return "marker" not in self.look


@dataclass(frozen=True)
class Panel:
    title: str
    curves: Sequence[Curve]
    at: float | None = None  # a size to point out

    @property
    def size(self) -> float | None:
        """The single size of all curves, if it is one."""
        sizes = {size for curve in self.curves for size, _ in curve.points}
        return sizes.pop() if len(sizes) == 1 else None


def plain_curve(label: str, points: Sequence[tuple[float, float]], dash: str) -> Curve:
    """What stands beside the routes: a floor, a formula."""
    return Curve(label, points, {"color": GREY, "linestyle": dash, "linewidth": 1.4})


def check_format(path: Path, option: str) -> None:
    if path.suffix not in FORMATS:
        raise UserError(f"{option} takes a file that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not {path}")


def make_figure(panels: Sequence[Panel], title: str, note: str) -> Figure:
    """The panels in about as many rows as columns, the legend of all at the right, the note below.

    Bars have their names beside them and need no legend.
    """
    with matplotlib.rc_context(STYLE):
        return _compose(panels, title, note)


def _compose(panels: Sequence[Panel], title: str, note: str) -> Figure:
    columns = math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    as_bars = all(panel.size is not None for panel in panels)
    keys = {} if as_bars else _keys(panels)
    legend = _LEGEND_LINE + _LEGEND_LETTER * max(len(label) for label in keys) if keys else 0.15
    wide, high = (6.4, 4.4) if columns == 1 else (4.6, 3.4)
    if as_bars:
        high = height_of_bars(max(len(panel.curves) for panel in panels))
    width = wide * columns + legend + 0.3
    note, lines = _wrap(note, int((width - 0.3) / _NOTE_LETTER))
    height = high * rows + 0.7 + 0.17 * lines
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor=WHITE)
    FigureCanvasAgg(figure)
    below = (0.15 + 0.17 * lines) / height
    figure.set_layout_engine("constrained", rect=(0, below, 1 - legend / width, 1 - below - 0.42 / height), h_pad=0.1)
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        _draw_bars(axes, panel) if as_bars else _draw_lines(axes, panel)
        if len(panels) > 1:
            axes.set_title(panel.title, fontsize=9.5, loc="left")
    figure.text(0.15 / width, 1 - 0.14 / height, title, fontsize=11.5, fontweight="bold", va="top")
    figure.text(0.15 / width, 0.1 / height, note, fontsize=7.5, color=GREY, va="bottom", linespacing=1.35)
    corner = (1 - legend / width, 1 - 0.6 / height)
    handles = [Line2D([], [], label=label, **look) for label, look in keys.items()]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, frameon=False, handlelength=3.2)
    return figure


def _wrap(text: str, length: int) -> tuple[str, int]:
    """With lines of at most so many letters, and how many they are."""
    lines = [part for line in text.split("\n") for part in wrap(line, length) or [""]]
    return "\n".join(lines), len(lines)


def _keys(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """Every label once, in the order in which the lines end on the right, slowest first; plain lines behind them."""
    ends: dict[str, float] = {}
    looks: dict[str, dict[str, Any]] = {}
    for curve in (curve for panel in panels for curve in panel.curves):
        looks.setdefault(curve.label, curve.look)
        ends.setdefault(curve.label, curve.points[-1][1])
    return {label: looks[label] for label in sorted(looks, key=lambda name: ("marker" not in looks[name], -ends[name]))}


def _draw_bars(axes: Axes, panel: Panel) -> None:
    looks = [(curve, curve.look["color"], curve.look.get("markerfacecolor", WHITE)) for curve in panel.curves]
    draw_bars(axes, [Bar(curve.label, curve.points[0][1], colour, fill) for curve, colour, fill in looks])
    axes.set_xlabel(f"time of one operation, {format_bytes(panel.size or 0)}")


def _draw_lines(axes: Axes, panel: Panel) -> None:
    for index, curve in enumerate(panel.curves):
        if len(curve.points) == 1 and curve.plain:
            axes.axhline(curve.points[0][1], **curve.look)  # a line of one point would not be seen
            continue
        every = max(1, len(curve.points) // _MARKS)
        marks = (index * every // len(panel.curves), every)  # lines on top of each other show their marks in turn
        axes.plot(*zip(*curve.points, strict=True), markevery=marks, zorder=3 if curve.plain else 2, **curve.look)
    if panel.at is not None:
        axes.axvline(panel.at, color=EDGE, linestyle="--", linewidth=1, zorder=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(which="major")
    sizes = [size for curve in panel.curves for size, _ in curve.points]
    axes.xaxis.set_major_locator(FixedLocator(_size_ticks(min(sizes), max(sizes))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: trim(format_bytes(size))))
    times = [seconds for curve in panel.curves for _, seconds in curve.points if seconds > 0]
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(times) / min(times) < 300 else (1,), numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: trim(format_seconds(seconds))))
    axes.set_xlabel("size of the buffer")
    axes.set_ylabel("time of one operation")


def _size_ticks(least: float, most: float) -> list[float]:
    """Powers of two, as many as can be read; sizes are rounded to whole elements of every worker."""
    first, last = math.ceil(math.log2(least) - 0.02), math.floor(math.log2(most) + 0.02)
    step = next(step for step in (1, 2, 5, 10, 20, 50) if last - first < step * _MOST_TICKS)
    return [2.0**power for power in range(first, last + 1, step)] or [least]
