"""A figure of a page, drawn twice: wide, and narrow for a phone; the page shows the one that fits.

Whoever has something to show writes a function that draws on matplotlib axes. Colours follow the page's light and dark
where they are those of lab/picture.py: take `line_look(index)` for lines, `colour(index)` and `tint(index)` for bars,
or leave them to matplotlib. `is_narrow(axes)` tells the two versions apart where they have to differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tutti.lab.picture import line_look
from tutti.lab.report.svg import LOOK, make_svg

WIDE, NARROW = 1040, 350  # pixels
_PIXELS = 96  # per inch, on every page
_SWATCH = (30, 13)


def is_narrow(axes: Axes) -> bool:
    """Whether it is the version for a phone that is being drawn."""
    figure = axes.get_figure(root=True)
    return figure is not None and figure.bbox.width < WIDE


@dataclass(frozen=True)
class Key:
    """A line of the legend: how something is drawn, from 0 to 1 in both directions, and what it is."""

    text: str
    artist: Callable[[], Artist]

    def html(self, name: str) -> str:
        figure = _new_figure(*_SWATCH)
        artist = self.artist()
        artist.set_transform(figure.transFigure)
        figure.add_artist(artist)
        return f"<li>{make_svg(figure, name)}{escape(self.text)}</li>"


def line_key(text: str, index: int) -> Key:
    return Key(text, lambda: Line2D([0, 0.5, 1], [0.5] * 3, markevery=[1], **line_look(index)))


def patch_key(text: str, fill: Any) -> Key:
    """For something that is filled with this colour."""
    return Key(text, lambda: Rectangle((0, 0), 1, 1, facecolor=fill, edgecolor="none"))


@dataclass(frozen=True)
class Chart:
    """One panel or several: beside each other where there is room, else below each other.

    `spoken` is what is read aloud in its place. Panels that share their y axis have it written once.
    """

    title: str
    panels: Sequence[Callable[[Axes], None]]
    caption: str
    spoken: str = ""
    keys: Sequence[Key] = ()
    height: float = 280  # pixels of a panel
    narrow_height: float = 230
    shared: bool = False

    def html(self, name: str) -> str:
        wide, narrow = (self._svg(f"{name}{size[0]}", size == "narrow") for size in ("wide", "narrow"))
        keys = "".join(key.html(f"{name}k{index}") for index, key in enumerate(self.keys))
        return (
            f'<figure id="{name}">\n<h3>{escape(self.title)}</h3>\n{f"<ul class=keys>{keys}</ul>" if keys else ""}\n'
            f'<div class="wide">{wide}</div>\n<div class="narrow">{narrow}</div>\n'
            f"<figcaption>{escape(self.caption)}</figcaption>\n</figure>"
        )

    def _svg(self, name: str, narrow: bool) -> str:
        with matplotlib.rc_context(LOOK):
            return make_svg(self.draw(narrow), name, f"{self.title}. {self.spoken or self.caption}")

    def draw(self, narrow: bool) -> Figure:
        """The figure itself."""
        count = len(self.panels)
        with matplotlib.rc_context(LOOK):
            figure = _new_figure(NARROW, count * self.narrow_height) if narrow else _new_figure(WIDE, self.height)
            figure.set_layout_engine("constrained", w_pad=0.05, h_pad=0.05, wspace=0.03, hspace=0.08)
            rows, columns = (count, 1) if narrow else (1, count)
            grid = figure.subplots(rows, columns, sharey=self.shared, squeeze=False)
            for draw, axes in zip(self.panels, grid.flat, strict=True):
                draw(axes)
                if self.shared and not narrow:
                    axes.label_outer()
        return figure


def _new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width / _PIXELS, height / _PIXELS), dpi=_PIXELS)
