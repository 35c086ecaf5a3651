"""A table of shares as coloured cells, each with its text: what is high and what is low is seen before it is read.

Blue is high and orange low, which eyes that confuse red and green tell apart; the colours stay as they are on dark
pages, since the letters on them do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.patches import Rectangle

from tutti.lab.report.chart import Chart, is_narrow, patch_key
from tutti.lab.report.parts import Cell

_SHADES = LinearSegmentedColormap.from_list("shares", ["#eda36b", "#f4efe8", "#6db1dd"])
_LOST, _LETTERS, _GAP = "#da6a2c", "#16181c", 0.06
_ROW = 25  # pixels
_AROUND = 105  # pixels of title, ticks and the axis' name


def make_heat_map(
    title: str,
    panels: Mapping[str, Sequence[Sequence[Cell]]],
    rows: Sequence[str],
    columns: Sequence[str],
    axis: str,
    caption: str,
    lost: str = "",
) -> Chart:
    """A panel per name, with a row of cells per row. A cell's value is a share from 0 to 1, or nan where all is lost:
    `lost` says what that means. `axis` is what the columns are."""
    keys = [patch_key(text, colour_of(share)) for text, share in (("100 %", 1.0), ("50 %", 0.5), ("0 %", 0.0))]
    if lost:
        keys.append(patch_key(lost, _LOST))
    height = _AROUND + _ROW * len(rows)
    drawn = [partial(_draw, name, cells, rows, columns, axis) for name, cells in panels.items()]
    spoken = ". ".join(_say(name, cells, rows, columns) for name, cells in panels.items())
    return Chart(title, drawn, caption, f"{caption} {spoken}.", keys, height, height, shared=True)


def colour_of(share: float) -> str:
    return _LOST if math.isnan(share) else to_hex(_SHADES(share))


def _draw(
    name: str, cells: Sequence[Sequence[Cell]], rows: Sequence[str], columns: Sequence[str], axis: str, axes: Axes
) -> None:
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            _draw_cell(axes, x, y, cell)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(name, fontsize=10, loc="left")
    axes.set_xlabel(axis)


def _draw_cell(axes: Axes, x: int, y: int, cell: Cell) -> None:
    share = math.nan if cell.value is None else cell.value
    corner, size = (x - 0.5 + _GAP / 2, y - 0.5 + _GAP / 2), 1 - _GAP
    axes.add_patch(Rectangle(corner, size, size, facecolor=colour_of(share), edgecolor="none"))
    size = 7.5 if is_narrow(axes) else 8.5
    axes.text(x, y, cell.text, ha="center", va="center", fontsize=size, color=_LETTERS)


def _say(name: str, cells: Sequence[Sequence[Cell]], rows: Sequence[str], columns: Sequence[str]) -> str:
    said = (
        f"{row} " + ", ".join(f"{column} {cell.text}" for column, cell in zip(columns, each, strict=True))
        for row, each in zip(rows, cells, strict=True)
    )
    return f"{name}: {'; '.join(said)}"
