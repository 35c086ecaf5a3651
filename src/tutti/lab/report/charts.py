"""What the records show, as charts: how accuracy, loss and consensus went, and where a step's time went."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tutti.lab.figures import Figures, read_figures
from tutti.lab.labels import join, make_labels
from tutti.lab.picture import GREY, HATCH, ROW, WHITE, differ_much, draw_steps, line_look, mark_powers
from tutti.lab.record import Record
from tutti.lab.report.chart import Chart, Key, is_narrow, line_key
from tutti.lab.units import format_bytes, format_number, format_percent, format_seconds

LABEL_LENGTH = 40
_SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}

# --- accuracy and loss -----------------------------------------------------------------------------------------------


def make_accuracy_chart(records: list[Record]) -> Chart | None:
    """Over epochs, seconds and bytes; None where no accuracy was measured."""
    curves = [Curve.read(record, "accuracy", 100) for record in records]
    spoken = "at the end " + join([f"{label} {value:.1f} %" for label, value in _ends(records, curves)])
    return _make_chart("Test accuracy", "test accuracy, %", spoken, "", records, curves)


def make_loss_chart(records: list[Record]) -> Chart | None:
    """The same for the loss on the test set."""
    curves = [Curve.read(record, "loss", 1) for record in records]
    lost = [label for label, c in zip(make_labels(records, LABEL_LENGTH), curves, strict=True) if not c.is_finite]
    note = f" Where a loss is not a finite number there is no point: {join(lost)}." if lost else ""
    spoken = "at the end " + join([f"{label} {format_number(value)}" for label, value in _ends(records, curves)])
    return _make_chart("Test loss", "test loss", spoken, note, records, curves)


@dataclass(frozen=True)
class Curve:
    """One figure of one record after each evaluation, beside all it can be drawn over."""

    values: list[float]
    over: dict[str, list[float]]

    @classmethod
    def read(cls, record: Record, key: str, scale: float) -> Curve:
        entries = record.evaluations if record.measurements else []
        across = ("epoch", "step", "seconds", "bytes")
        over = {name: [float(entry.get(name, math.nan)) for entry in entries] for name in across}
        return cls([scale * float(entry.get(key, math.nan)) for entry in entries], over)

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, self.values))

    def points(self, name: str) -> list[tuple[float, float]]:
        """What can be drawn; nothing where everything would stand at zero, as over the bytes of one worker alone."""
        if not self.goes_along(name):
            return []
        pairs = zip(self.over[name], self.values, strict=True)
        return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]

    def goes_along(self, name: str) -> bool:
        return any(x > 0 for x in self.over[name])


def _ends(records: list[Record], curves: list[Curve]) -> list[tuple[str, float]]:
    labels = make_labels(records, LABEL_LENGTH)
    return [(label, curve.values[-1]) for label, curve in zip(labels, curves, strict=True) if curve.values]


def _make_chart(
    title: str, axis: str, spoken: str, note: str, records: list[Record], curves: list[Curve]
) -> Chart | None:
    if not any(curve.points("epoch") for curve in curves):
        return None
    labels = make_labels(records, LABEL_LENGTH)
    silent = [label for label, c in zip(labels, curves, strict=True) if c.values and not c.goes_along("bytes")]
    panels = [_draw_over_epochs, _draw_over_seconds]
    where = "epochs and seconds of training of the slowest worker, without evaluation"
    if any(curve.points("bytes") for curve in curves):
        panels.append(_draw_over_bytes)
        where = "epochs, seconds of training of the slowest worker (without evaluation) and what worker 0 had sent"
        note = (f" Without a line over bytes, as none were counted: {join(silent)}." if silent else "") + note
    keys = [line_key(label, index) for index, label in enumerate(labels) if curves[index].values]
    equal = "; lines that lie upon each other are equal" if len(keys) > 1 else ""
    caption = f"The same evaluations over {where}{equal}.{note}"
    drawn = [partial(panel, curves, axis) for panel in panels]
    return Chart(title, drawn, caption, f"{caption} {spoken}.", keys, shared=True)


def _draw_over_epochs(curves: list[Curve], name: str, axes: Axes) -> None:
    _plot(axes, curves, "epoch", 1)
    axes.set_xlabel("epochs")
    axes.set_ylabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    _scale_up(axes, curves, name)


def _draw_over_seconds(curves: list[Curve], name: str, axes: Axes) -> None:
    ends = _plot(axes, curves, "seconds", 1)
    axes.set_xlabel(f"seconds of training{_scale_across(axes, ends)}")
    axes.set_ylabel(name)
    _scale_up(axes, curves, name)


def _draw_over_bytes(curves: list[Curve], name: str, axes: Axes) -> None:
    largest = max(x for curve in curves for x, _ in curve.points("bytes"))
    unit = format_bytes(largest).split()[1]
    ends = _plot(axes, curves, "bytes", _SIZES[unit])
    axes.set_xlabel(f"{unit} sent by worker 0{_scale_across(axes, ends)}")
    axes.set_ylabel(name)
    _scale_up(axes, curves, name)


def _plot(axes: Axes, curves: list[Curve], key: str, scale: float) -> list[float]:
    """Returns how far the lines go."""
    axes.grid(axis="y")
    ends = []
    for index, curve in enumerate(curves):
        points = [(x / scale, y) for x, y in curve.points(key)]
        if points:
            look = {**line_look(index), "markersize": 4, "linewidth": 1.5, "markevery": max(1, len(points) // 8)}
            axes.plot(*zip(*points, strict=True), **look)
            ends.append(points[-1][0])
    return ends


def _scale_across(axes: Axes, ends: list[float]) -> str:
    """Logarithmic where the lines differ much in length; returns what the axis says of that."""
    if len(ends) > 1 and differ_much(ends):
        axes.set_xscale("log")
        low, high = axes.dataLim.intervalx
        mark_powers(axes.xaxis, high / low)
        return " (logarithmic)"
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return ""


def _scale_up(axes: Axes, curves: list[Curve], name: str) -> None:
    """Losses begin at zero, or are logarithmic where the small ones would be lost."""
    values = [y for curve in curves for _, y in curve.points("epoch")]
    if name.endswith("%"):
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    elif min(values) > 0 and max(values) / min(values) > 20:
        axes.set_yscale("log")
        mark_powers(axes.yaxis, max(values) / min(values))
        axes.set_ylabel(f"{name} (logarithmic)")
    else:
        axes.set_ylim(min(0, *values), 1.05 * max(values) or 1)


# --- distance from consensus -----------------------------------------------------------------------------------------


def make_distance_chart(records: list[Record]) -> Chart | None:
    """Over steps; None where workers were equal in every run."""
    curves, labels = [Curve.read(record, "distance", 1) for record in records], make_labels(records, LABEL_LENGTH)
    ends = {
        label: curve.points("step")[-1][1] for label, curve in zip(labels, curves, strict=True) if curve.points("step")
    }
    if not ends:
        return None
    without = [label for label in labels if label not in ends]
    note = f" Without a line, as none was measured: {join(without)}." if without else ""
    caption = (
        "How far the workers' models are from their mean at every evaluation: the square root of the mean over all "
        f"workers of the squared distance, over all trained weights.{note}"
    )
    spoken = "At the end " + join([f"{label} {format_number(distance)}" for label, distance in ends.items()])
    keys = [line_key(label, index) for index, label in enumerate(labels) if label in ends]
    return Chart("Distance from consensus", [partial(_draw_distances, curves)], caption, f"{caption} {spoken}.", keys)


def _draw_distances(curves: list[Curve], axes: Axes) -> None:
    _plot(axes, curves, "step", 1)
    axes.set_xlabel("steps")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylabel("distance")
    _scale_up(axes, curves, "distance")


# --- where a step's time went ----------------------------------------------------------------------------------------


def make_step_chart(records: list[Record]) -> Chart | None:
    """Computing and waiting add up to the step; what ran beside computing stands under it. None without any step."""
    figures = read_figures(records, LABEL_LENGTH)
    measured = [each for each in figures if math.isfinite(each.step)]
    if not measured:
        return None
    rows = max(4, len(figures))
    caption = (
        "The seconds of training of the slowest worker over its steps, the first ones included; what they went to is "
        "the mean over all workers. Computing and waiting for communication or slower workers (exposed) add up to the "
        "step. Communication that ran beside computing (hidden) adds nothing to it and stands under it."
    )
    return Chart(
        "Where a step's time went",
        [partial(_draw_steps, figures)],
        caption,
        spoken=f"{caption} {'; '.join(map(_say_step, measured))}.",
        keys=_time_keys(any(each.hidden > 0 for each in measured)),
        height=70 + 30 * rows,
        narrow_height=70 + 46 * rows,
    )


def _say_step(each: Figures) -> str:
    return (
        f"{each.label} {format_seconds(each.step)}, {format_percent(each.exposed / each.step, 0)} of it waiting, "
        f"{format_seconds(each.hidden)} hidden"
    )


def _draw_steps(figures: list[Figures], axes: Axes) -> None:
    """On a phone the names stand over the bars, else before them."""
    draw_steps(axes, figures)
    rows, names = [index + ROW for index in range(len(figures))], [each.label for each in figures]
    if not is_narrow(axes):
        axes.set_yticks(rows, names, color="black", fontsize=9.5)
        axes.tick_params(axis="y", length=0)
        return
    axes.set_ylim(axes.get_ylim()[0], axes.get_ylim()[1] - 0.3)
    for row, name in zip(rows, names, strict=True):
        axes.text(0, row - 0.41, name, transform=axes.get_yaxis_transform(), va="center", fontsize=9)


def _time_keys(hidden: bool) -> list[Key]:
    def patch(face: str, hatch: str = "") -> Callable[[], Artist]:
        return lambda: Rectangle((0.03, 0.1), 0.94, 0.8, facecolor=face, edgecolor=GREY, hatch=hatch)

    keys = [Key("compute", patch("#e6e6e6")), Key("exposed communication", patch(GREY))]
    return [*keys, Key("hidden communication, beside computing", patch(WHITE, HATCH))] if hidden else keys
