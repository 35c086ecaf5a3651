"""The times of several routes at one size: a bar each, the fastest at the top, its time written behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tutti.lab.units import format_seconds, trim

_BAR, _AROUND = 0.27, 1.0  # inches: a bar with the gap behind it, axis and title
_FEW = 5  # fewer bars than that leave room free, rather than to become walls
_ROOM = 1.2  # of the longest bar, so that its time has room behind it


@dataclass(frozen=True)
class Bar:
    label: str
    seconds: float
    colour: str
    fill: str


def height_of_bars(count: int) -> float:
    """Inches that a panel of so many bars takes."""
    return _AROUND + _BAR * max(_FEW, count)


def draw_bars(axes: Axes, bars: Sequence[Bar]) -> None:
    ordered = sorted(bars, key=lambda bar: bar.seconds)
    longest = ordered[-1].seconds
    for row, bar in enumerate(ordered):
        axes.barh(row, bar.seconds, 0.62, color=bar.fill, edgecolor=bar.colour, linewidth=1.2)
        axes.text(bar.seconds + 0.012 * longest, row, format_seconds(bar.seconds), va="center", fontsize=8.5)
    axes.set_yticks(range(len(ordered)), [bar.label for bar in ordered])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(_FEW, len(ordered)) - 0.4, -0.6)
    axes.set_xlim(0, _ROOM * longest)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: trim(format_seconds(seconds)) if seconds else "0"))
