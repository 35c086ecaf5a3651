"""A comparison as one picture: accuracy over seconds of training, and where a step's time went.

The names stand once, between the panels, each with its line: they are the legend of the left panel and the labels of
the right one. Computing and waiting add up to the step; communication that ran beside computing is a thin hatched bar
under it that ends where waiting begins, since it adds nothing to the step. The colours, lines, axes and bars are also
those of the report (lab/report).
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import blended_transform_factory

from tutti.errors import NotWritten
from tutti.files import name_problem
from tutti.lab.figures import Figures, read_figures
from tutti.lab.labels import describe_conditions
from tutti.lab.record import Record
from tutti.lab.units import NOTHING, common_unit, format_number, format_seconds

_WIDTH, _HEIGHT, _DPI = 12.0, 5.0, 100  # inches, and pixels per inch
_CURVES_AT, _NAMES_AT = 0.65, 5.45  # inches from the left
ROW = -0.08  # the middle of a bar, which leaves room for the thin one under it
_LABEL_LENGTH = 26
# Okabe and Ito, "Color universal design" (2008), less yellow, which is lost on white; then again with dashes.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_DASHES = ("-", "--", ":")
_MARKERS = "osD^vP*"
WHITE, GREY, EDGE, GRID, HATCH = "#ffffff", "#555555", "#999999", "#e6e6e6", "//////"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "tutti",
    "hatch.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.axisbelow": True,
    "grid.color": GRID,
}


def draw(records: list[Record], path: Path) -> None:
    """Write the picture; the suffix of the path says the format (.png, .svg)."""
    figure = make_figure(records)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Whole or not at all; the suffix of the path says the format."""
    draft = path.with_name(f"{path.name}.draft")
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    try:
        with matplotlib.rc_context(STYLE):  # how text goes into an SVG is read only now
            figure.savefig(draft, format=path.suffix.removeprefix("."), dpi=_DPI, metadata=metadata)
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise NotWritten(f"cannot write {path}: {name_problem(error)}") from None


def make_figure(records: list[Record]) -> Figure:
    with matplotlib.rc_context(STYLE):
        return _compose(records)


def _compose(records: list[Record]) -> Figure:
    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI, facecolor=WHITE)
    FigureCanvasAgg(figure)
    figures = read_figures(records, _LABEL_LENGTH)
    bottom, height = 0.95 / _HEIGHT, 3.3 / _HEIGHT
    curves = figure.add_axes((_CURVES_AT / _WIDTH, bottom, 4.5 / _WIDTH, height))
    bars = figure.add_axes((0.5, bottom, 0.4, height))  # until it is known how wide the names are
    _draw_titles(figure)
    _draw_accuracy(curves, records)
    draw_steps(bars, figures)
    begin = _draw_names(figure, bars, figures)
    bars.set_position((begin / _WIDTH, bottom, (_WIDTH - 0.3 - begin) / _WIDTH, height))
    conditions = describe_conditions(records) or "no records"
    figure.text(0.2 / _WIDTH, 0.15 / _HEIGHT, conditions, fontsize=7.5, color=GREY, va="bottom", wrap=True)
    return figure


def _draw_titles(figure: Figure) -> None:
    """What the panels show, and the kinds of time that the bars are made of."""
    for at, title in ((_CURVES_AT, "Accuracy over training time"), (_NAMES_AT, "Where a step's time went")):
        figure.text(at / _WIDTH, 4.62 / _HEIGHT, title, fontsize=11.5, fontweight="bold")
    kinds = [
        Patch(facecolor="#cccccc", edgecolor=GREY, label="compute"),
        Patch(facecolor=GREY, edgecolor=GREY, label="exposed communication"),
        Patch(facecolor=WHITE, edgecolor=GREY, hatch=HATCH, label="hidden communication, beside computing"),
    ]
    corner = (_NAMES_AT / _WIDTH, 4.35 / _HEIGHT)
    layout = {"ncols": 3, "borderaxespad": 0, "borderpad": 0, "handlelength": 1.6, "columnspacing": 1.6}
    figure.legend(
        handles=kinds, loc="lower left", bbox_to_anchor=corner, frameon=False, labelcolor=GREY, fontsize=8.5, **layout
    )


# --- the left panel --------------------------------------------------------------------------------------------------


def _draw_accuracy(axes: Axes, records: list[Record]) -> None:
    axes.set_xlabel("seconds of training (slowest worker), without evaluation")
    axes.set_ylabel("test accuracy, %")
    axes.grid(axis="y")
    ends = []
    for index, record in enumerate(records):
        points = [(e["seconds"], 100 * e["accuracy"]) for e in _evaluations(record)]
        if points:
            axes.plot(*zip(*points, strict=True), **line_look(index), markevery=max(1, len(points) // 12))
            ends.append(points[-1][0])
    if not ends:
        axes.text(0.5, 0.5, "no accuracy was measured", transform=axes.transAxes, ha="center", va="center", color=GREY)
    elif len(ends) > 1 and differ_much(ends):
        axes.set_xscale("log")
        mark_powers(axes.xaxis, max(ends) / min(ends))
        axes.set_xlabel("seconds of training (slowest worker), without evaluation, logarithmic")
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def differ_much(values: list[float]) -> bool:
    """Whether the small ones would be lost on an axis from zero to the largest."""
    return min(values) > 0 and max(values) / min(values) > 5


def mark_powers(axis: Axis, span: float) -> None:
    """Numbers along a logarithmic axis: 1, 2 and 5 of every power of ten, or only the powers where they are many."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 300 else (1,), numticks=6))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _write_tick(value)))


def _write_tick(value: float) -> str:
    """2.50 -> 2.5, 10.0 -> 10, 1,000,000 -> 10⁶."""
    power = round(math.log10(value), 9)
    if power.is_integer() and not -4 < power < 6:
        return "10" + str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    number = format_number(value)
    return number.rstrip("0").rstrip(".") if "." in number else number


def _evaluations(record: Record) -> list[dict[str, float]]:
    return record.evaluations if record.measurements else []


def line_look(index: int) -> dict[str, Any]:
    """How record number `index` is drawn, in either panel."""
    turn = index // len(COLOURS)
    return {
        "color": colour(index),
        "linestyle": _DASHES[turn % len(_DASHES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 5,
        "linewidth": 1.8,
        "markerfacecolor": colour(index) if turn % 2 == 0 else WHITE,
    }


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


# --- the right panel -------------------------------------------------------------------------------------------------


def draw_steps(axes: Axes, figures: list[Figures]) -> None:
    longest = max((each.step for each in figures if math.isfinite(each.step)), default=1.0)
    scale, unit = common_unit([longest])
    axes.set_xlabel(f"{'milliseconds' if unit == 'ms' else 'seconds'} per step")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.yaxis.set_major_locator(NullLocator())
    rows = max(len(figures), 4)  # so that few bars do not become walls
    middle = (len(figures) - 1) / 2
    axes.set_ylim(middle + rows / 2 + 0.1, middle - rows / 2)
    axes.set_xlim(0, 1.18 * longest)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / scale:g}"))
    for index, each in enumerate(figures):
        _draw_bar(axes, index, each, longest)


def _draw_bar(axes: Axes, index: int, each: Figures, longest: float) -> None:
    row, gap = index + ROW, 0.015 * longest
    if not math.isfinite(each.step):
        axes.text(gap, row, f"{NOTHING} not measured", va="center", color=GREY, fontsize=8)
        return
    outline: dict[str, Any] = {"edgecolor": colour(index), "linewidth": 0.8}
    axes.barh(row, each.compute, 0.5, color=tint(index), **outline)
    axes.barh(row, each.exposed, 0.5, left=each.compute, color=colour(index), **outline)
    if each.hidden > 0:
        begin = max(0.0, each.compute - each.hidden)
        axes.barh(row + 0.36, each.hidden, 0.16, left=begin, color=WHITE, hatch=HATCH, **outline)
    axes.text(each.compute + each.exposed + gap, row, format_seconds(each.step), va="center", fontsize=8.5)


def tint(index: int) -> tuple[float, float, float]:
    red, green, blue = (0.65 + 0.35 * part for part in to_rgb(colour(index)))
    return red, green, blue


# --- the names between them ------------------------------------------------------------------------------------------


def _draw_names(figure: Figure, bars: Axes, figures: list[Figures]) -> float:
    """Every name beside its bar, with its line; returns where the bars may begin, in inches."""
    place = blended_transform_factory(figure.dpi_scale_trans, bars.transData)
    line, words = (_NAMES_AT, _NAMES_AT + 0.19, _NAMES_AT + 0.38), _NAMES_AT + 0.5
    ends = [words]
    for index, each in enumerate(figures):
        row = index + ROW
        bars.add_artist(Line2D(line, [row] * 3, transform=place, clip_on=False, markevery=[1], **line_look(index)))
        text = bars.text(words, row, each.label, transform=place, va="center", fontsize=9.5)
        ends.append(text.get_window_extent().x1 / figure.dpi)
    return max(ends) + 0.12
