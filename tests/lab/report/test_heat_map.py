"""A heat map: every cell where it belongs, coloured by its share and readable on it."""

from __future__ import annotations

import math

import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Rectangle

from tutti.lab.report.heat_map import _LETTERS, colour_of, make_heat_map
from tutti.lab.report.parts import Cell

ROWS, COLUMNS = ["mean", "median", "a long name of a row"], ["honest", "bad"]
GRID = [
    [Cell("97.0", 0.97), Cell("×", math.nan)],
    [Cell("96.0", 0.96), Cell("95.0", 0.95)],
    [Cell("10.0", 0.10), Cell("0.0", 0.0)],
]
CHART = make_heat_map("Accuracy", {"here": GRID, "there": GRID}, ROWS, COLUMNS, "what is sent", "In %.", "diverged")


@pytest.mark.parametrize("narrow", [False, True])
def test_every_cell_stands_in_its_row_and_column(narrow: bool) -> None:
    for axes in CHART.draw(narrow).axes:
        assert [label.get_text() for label in axes.get_xticklabels()] == COLUMNS
        cells = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        assert len(cells) == len(axes.texts) == 6
        for index, (cell, text) in enumerate(zip(cells, axes.texts, strict=True)):
            y, x = divmod(index, 2)
            assert text.get_position() == (x, y)
            assert text.get_text() == GRID[y][x].text
            assert cell.get_bbox().contains(x, y)
            assert to_hex(cell.get_facecolor()) == colour_of(GRID[y][x].value or 0.0)
        assert axes.get_ylim() == (2.5, -0.5), "the first row is on top"


def test_texts_stay_within_their_cells_on_a_phone() -> None:
    figure = CHART.draw(narrow=True)
    figure.canvas.draw()
    for axes in figure.axes:
        for cell, text in zip(axes.patches, axes.texts, strict=True):
            box, room = text.get_window_extent(), cell.get_window_extent()
            assert room.x0 <= box.x0
            assert box.x1 <= room.x1


def brightness(colour: str) -> float:
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0, math.nan])
def test_letters_can_be_read_on_every_colour(share: float) -> None:
    contrast = (brightness(colour_of(share)) + 0.05) / (brightness(_LETTERS) + 0.05)
    assert contrast > 4.5  # what WCAG asks for


def test_what_is_high_what_is_low_and_what_is_lost_differ() -> None:
    assert len({colour_of(share) for share in (0.0, 0.5, 1.0, math.nan)}) == 4


def test_it_can_be_heard() -> None:
    assert "here: mean honest 97.0, bad ×; median honest 96.0, bad 95.0" in CHART.spoken
    assert [key.text for key in CHART.keys] == ["100 %", "50 %", "0 %", "diverged"]


def test_nothing_is_said_of_losses_where_none_can_be() -> None:
    chart = make_heat_map("Shares", {"here": GRID[1:]}, ROWS[1:], COLUMNS, "what", "In %.")
    assert [key.text for key in chart.keys] == ["100 %", "50 %", "0 %"]
