"""A topology as a picture: who talks to whom, or how one worker's message spreads by gossip and by relaying.

In trees those who pass messages on are dark and leaves are light. Where links are one-way, their colour says how far
ahead they lead. In the picture of a spread a cell's shade is the share of the message that a worker has after a round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import MaxNLocator

from tutti.graph import Matrix
from tutti.lab.picture import COLOURS, EDGE, GREY, GRID, STYLE, WHITE, colour, tint
from tutti.lab.topology_figures import TopologyFigures, count_workers, describe
from tutti.lab.topology_layout import Layout, Link, lay_out
from tutti.lab.topology_spread import Spread
from tutti.lab.topology_spread import describe as describe_spread
from tutti.topologies.base import Topology

_DPI = 100
_STEPS = 4  # of a changing topology that are drawn
_BOTTOM, _SIDE = 0.5, 0.3  # inches around the panels
_POINTS = 72  # per inch
_LARGEST, _SMALLEST_NAMED = 24.0, 10.0  # points across a worker: the most, and the least that has room for its number
_DARK = "#00263d"  # a worker that has all of a message


def save(figure: Figure, path: Path, form: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    try:
        with matplotlib.rc_context(STYLE):  # how text goes into an SVG is read only now
            figure.savefig(draft, format=form, dpi=_DPI, metadata={"Date": None} if form == "svg" else None)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


# --- the graph -------------------------------------------------------------------------------------------------------


def make_graph(topology: Topology, figures: TopologyFigures) -> Figure:
    """A panel per part, or per step where the topology changes."""
    workers, step = figures.workers, figures.step
    steps = range(step, step + (min(_STEPS, figures.period) if figures.changing else 1))
    layouts = {
        _name_panel(figures, at, part): lay_out(topology, workers, at, part)
        for at in steps
        for part in range(topology.parts)
    }
    with matplotlib.rc_context(STYLE):
        return _compose(figures, layouts)


def _name_panel(figures: TopologyFigures, step: int, part: int) -> str:
    return f"step {step}" if figures.changing else f"part {part + 1} of the buffer" if figures.parts > 1 else ""


def _compose(figures: TopologyFigures, layouts: dict[str, Layout]) -> Figure:
    across, height = _measure_panel(layouts)
    top = 0.95 if len(layouts) > 1 else 0.7
    width, tall = max(6.4, _SIDE + len(layouts) * (across + _SIDE)), height + top + _BOTTOM
    figure = Figure(figsize=(width, tall), dpi=_DPI, facecolor=WHITE)
    FigureCanvasAgg(figure)
    title = f"{figures.spec} over {count_workers(figures.workers)}"
    figure.text(_SIDE / width, 1 - 0.32 / tall, title, fontsize=11.5, fontweight="bold")
    figure.text(_SIDE / width, 1 - 0.56 / tall, describe(figures), fontsize=8.5, color=GREY)
    distances = sorted({_ahead(link, figures.workers) for each in layouts.values() for link in each.links})
    begin = (width - len(layouts) * (across + _SIDE) + _SIDE) / 2
    for at, (name, layout) in enumerate(layouts.items()):
        left = begin + at * (across + _SIDE)
        axes = figure.add_axes((left / width, _BOTTOM / tall, across / width, height / tall))
        _draw_panel(axes, layout, across, distances if figures.directed else None)
        axes.set_title(name, fontsize=9, color=GREY)
    _write_key(figure, figures, layout, distances)
    return figure


def _measure_panel(layouts: dict[str, Layout]) -> tuple[float, float]:
    """Inches across and down that suit the drawing and leave room for all panels."""
    layout = next(iter(layouts.values()))
    across = {1: 6.0, 2: 4.8}.get(len(layouts), 3.6) + min(3.0, len(layout.points) / 20)
    wide, tall = _extent(layout)
    return across, min(across, max(1.0, across * tall / wide))


def _extent(layout: Layout) -> tuple[float, float]:
    """Width and height of what is drawn, with a margin, in the layout's units."""
    spans = [max(values) - min(values) for values in zip(*layout.points, strict=True)]
    margin = 0.06 * max(spans) + (0.4 if layout.wraps else 0.05)
    return spans[0] + 2 * margin, spans[1] + 2 * margin


def _draw_panel(axes: Axes, layout: Layout, across: float, distances: list[int] | None) -> None:
    """`distances` that one-way links have, or None where all links go both ways."""
    wide, tall = _extent(layout)
    x, y = ((max(values) + min(values)) / 2 for values in zip(*layout.points, strict=True))
    axes.set_xlim(x - wide / 2, x + wide / 2)
    axes.set_ylim(y - tall / 2, y + tall / 2)
    axes.set_aspect("equal")
    axes.set_axis_off()
    size = _size_workers(layout, across * _POINTS / wide)
    if distances is None:
        _draw_lines(axes, layout, size)
    else:
        _draw_arrows(axes, layout, size, distances)
    _draw_workers(axes, layout, size)


def _size_workers(layout: Layout, scale: float) -> float:
    """Points across a worker, so that neighbours do not touch."""
    points = np.array(layout.points)
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    nearest = float(apart[apart > 0].min(initial=np.inf))
    return min(_LARGEST, 0.55 * nearest * scale)


def _draw_lines(axes: Axes, layout: Layout, size: float) -> None:
    straight = [[layout.points[worker] for worker in link] for link in layout.links if link not in layout.wraps]
    width = _width(layout.links, size)
    axes.add_collection(LineCollection(straight, colors=EDGE, linewidths=width, zorder=1))
    for link in sorted(layout.wraps):
        axes.add_patch(_bend(layout, link, 0.25, arrowstyle="-", color=EDGE, linewidth=width, zorder=1))


def _draw_arrows(axes: Axes, layout: Layout, size: float, distances: list[int]) -> None:
    width, head = _width(layout.links, size), max(3.0, 0.4 * size)
    for link in layout.links:
        ink = colour(distances.index(_ahead(link, len(layout.points))))
        look: dict[str, Any] = {"color": ink, "linewidth": width, "mutation_scale": head, "zorder": 1}
        axes.add_patch(_bend(layout, link, 0.12, arrowstyle="-|>", shrinkA=size / 2, shrinkB=size / 2, **look))


def _bend(layout: Layout, link: Link, by: float, **look: Any) -> FancyArrowPatch:
    start, end = (layout.points[worker] for worker in link)
    return FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={by}", **look)


def _width(links: list[Link], size: float) -> float:
    """Many links are thin."""
    return min(1.4, max(0.3, 0.06 * size)) * (1.0 if len(links) < 200 else 0.5)


def _ahead(link: Link, workers: int) -> int:
    return (link[1] - link[0]) % workers


def _draw_workers(axes: Axes, layout: Layout, size: float) -> None:
    leaves = _find_leaves(layout)
    for worker, (x, y) in enumerate(layout.points):
        face, ink = (tint(0), "black") if worker in leaves else (colour(0), WHITE)
        axes.plot(x, y, "o", markersize=size, markerfacecolor=face, markeredgecolor=colour(0), zorder=2)
        if size >= _SMALLEST_NAMED:
            axes.text(
                x,
                y,
                str(worker),
                ha="center",
                va="center_baseline",
                fontsize=max(5.5, 0.42 * size),
                color=ink,
                zorder=3,
            )


def _find_leaves(layout: Layout) -> set[int]:
    if not layout.tree or len(layout.points) < 3:
        return set()
    ends = [worker for link in layout.links for worker in link]
    return {worker for worker in range(len(layout.points)) if ends.count(worker) == 1}


def _write_key(figure: Figure, figures: TopologyFigures, layout: Layout, distances: list[int]) -> None:
    width, tall = figure.get_size_inches()
    if _find_leaves(layout):
        words = "dark: passes messages on; light: a leaf"
        figure.text(_SIDE / width, 0.2 / tall, words, fontsize=8.5, color=GREY)
    elif figures.directed and distances:
        lines = [Line2D([], [], color=colour(at), label=f"{ahead} ahead") for at, ahead in enumerate(distances)]
        look: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "labelcolor": GREY, "borderaxespad": 0}
        corner = (_SIDE / width, 0.08 / tall)
        figure.legend(handles=lines, loc="lower left", bbox_to_anchor=corner, ncols=min(8, len(lines)), **look)


# --- the spread ------------------------------------------------------------------------------------------------------


def make_spread(each: Spread) -> Figure:
    with matplotlib.rc_context(STYLE):
        return _compose_spread(each)


def _compose_spread(each: Spread) -> Figure:
    width, height = 11.0, min(8.5, max(3.2, 0.3 * (each.rounds + 1))) + 1.9
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor=WHITE)
    FigureCanvasAgg(figure)
    title = f"How worker {each.source}'s message spreads: {each.spec} over {count_workers(each.workers)}"
    figure.text(0.6 / width, (height - 0.32) / height, title, fontsize=11.5, fontweight="bold")
    figure.text(0.6 / width, 0.12 / height, "\n".join(describe_spread(each)), fontsize=8.5, color=GREY, va="bottom")
    panels = ((f"gossip, {each.rule} weights", each.gossip), (each.way.replace("relayed", "relay,"), each.relay))
    for at, (name, shares) in enumerate(panels):
        left = 0.6 + at * 4.75
        axes = figure.add_axes((left / width, 1.05 / height, 4.45 / width, (height - 1.95) / height))
        image = _draw_shares(axes, shares, each.workers)
        axes.set_title(name, fontsize=9.5, loc="left")
        axes.set_xlabel("worker")
        axes.set_ylabel("round" if at == 0 else "")
    bar = figure.add_axes((10.1 / width, 1.05 / height, 0.18 / width, (height - 1.95) / height))
    _draw_scale(figure, bar, image, each.workers)
    return figure


def _draw_shares(axes: Axes, shares: Matrix, workers: int) -> Any:
    shades = LinearSegmentedColormap.from_list("share", [WHITE, COLOURS[0], _DARK])
    norm = TwoSlopeNorm(1 / workers, vmin=0, vmax=max(1.0, 1.5 / workers))
    axes.set_facecolor(GRID)
    image = axes.imshow(np.ma.masked_equal(shares, 0), cmap=shades, norm=norm, aspect="auto", interpolation="nearest")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(16, integer=True, min_n_ticks=1))
    if workers <= 10 and len(shares) <= 20:
        for (at, worker), share in np.ndenumerate(shares):
            if share > 0:
                ink = WHITE if share * workers > 0.6 else "black"
                axes.text(worker, at, f"{100 * share:.1f}", ha="center", va="center", fontsize=7, color=ink)
    return image


def _draw_scale(figure: Figure, bar: Axes, image: Any, workers: int) -> None:
    scale = figure.colorbar(image, cax=bar)
    ticks = {0.0: "0 %", 1 / workers: f"{100 / workers:.3g} %\n= 1/{workers}", 1.0: "100 %"}
    scale.set_ticks(list(ticks), labels=list(ticks.values()))
    scale.minorticks_off()
    bar.set_title("share", fontsize=8.5, color=GREY)
