"""Who got what: a bar per worker, stacked from its samples of each class, where every worker has samples of its own.

The colours are light, so that a class can be written on its piece of a bar, and stay as they are on dark pages, since
the letters on them do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tutti.lab.labels import find_partition, join
from tutti.lab.picture import WHITE
from tutti.lab.record import Record
from tutti.lab.report.chart import NARROW, WIDE, Chart, is_narrow, patch_key
from tutti.lab.report.parts import Paragraph, Section

# Eight of Tol, "Colour schemes" (2021), the light ones, which are made to be written on, in an order that parts like
# from like; a lilac and a brown are ours.
COLOURS = (
    "#77aadd",
    "#ee8866",
    "#eedd88",
    "#ffaabb",
    "#44bb99",
    "#99ddff",
    "#bbcc33",
    "#c9a6e4",
    "#c69c74",
    "#dddddd",
)
LETTERS = "#16181c"
_BESIDE = 3  # panels of a chart
_ROWS, _ALL_ROWS = (9, 26), 480  # pixels of a bar with the room around it, at least and at most, and of all
_AROUND, _BEFORE = 105, 50  # pixels of title, ticks and the axis' name, and of those before the bars
_WORD = 16  # pixels a piece of a bar needs in both directions to have its class written on it


@dataclass(frozen=True)
class Shares:
    """How many samples of each class every worker has: a row per worker."""

    partition: str
    seed: int
    counts: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, record: Record) -> Shares | None:
        """None where samples belong to nobody, or where nobody has counted them."""
        counts = tuple(tuple(each.get("classes") or ()) for each in record.measurements)
        known = bool(counts) and all(counts) and find_partition(record) != "iid"
        return cls(find_partition(record), int(record.plan.get("seed", 0)), counts) if known else None

    @property
    def classes(self) -> int:
        return max(len(row) for row in self.counts)

    @property
    def longest(self) -> int:
        return max(sum(row) for row in self.counts)


def make_shares(records: list[Record]) -> Section | None:
    """A section of its own; None where samples belong to nobody, or all to one."""
    divided = [record for record in records if record.workers > 1 and find_partition(record) != "iid"]
    if not divided:
        return None
    charts = make_share_charts(divided)
    return Section("Who got what", charts or [Paragraph("No samples were counted.")])


def make_share_charts(records: list[Record]) -> list[Chart]:
    """Every way in which samples were divided, once; those with as many workers beside each other."""
    found = dict.fromkeys(shares for shares in map(Shares.read, records) if shares is not None)
    sizes = dict.fromkeys(len(shares.counts) for shares in found)
    groups = [[shares for shares in found if len(shares.counts) == size] for size in sizes]
    return [_make_chart(group[at : at + _BESIDE]) for group in groups for at in range(0, len(group), _BESIDE)]


def _make_chart(panels: list[Shares]) -> Chart:
    workers, classes = len(panels[0].counts), max(each.classes for each in panels)
    row = min(_ROWS[1], max(_ROWS[0], _ALL_ROWS // workers))
    height = _AROUND + row * workers
    again = f" After class {len(COLOURS) - 1} the colours come again." if classes > len(COLOURS) else ""
    caption = f"Samples of each class that are a worker's own, of {workers} workers.{again}"
    keys = [patch_key(f"class {index}", COLOURS[index]) for index in range(min(classes, len(COLOURS)))]
    names = _name(panels)
    drawn = [partial(_draw, *pair, len(panels), row >= _WORD) for pair in zip(names, panels, strict=True)]
    spoken = ". ".join(map(_say, names, panels))
    title = f"Classes of every worker, {join(list(dict.fromkeys(each.partition for each in panels)))}"
    return Chart(title, drawn, caption, f"{caption} {spoken}.", keys, height, height, shared=True)


def _name(panels: list[Shares]) -> list[str]:
    """By the partition, and the seed where there are several of one."""
    partitions = [each.partition for each in panels]
    repeated = len(set(partitions)) < len(partitions)
    return [f"{each.partition}, seed {each.seed}" if repeated else each.partition for each in panels]


def _draw(name: str, shares: Shares, beside: int, written: bool, axes: Axes) -> None:
    pixels = (NARROW if is_narrow(axes) else WIDE / beside) - _BEFORE
    least = shares.longest * _WORD / pixels if written else math.inf
    for row, counts in enumerate(shares.counts):
        _draw_bar(axes, row, counts, least)
    if beside > 1:
        axes.set_title(name, fontsize=10, loc="left")
    axes.set_xlim(0, shares.longest)
    axes.set_ylim(len(shares.counts) - 0.5, -0.5)
    axes.set_xlabel("samples")
    axes.set_ylabel("worker")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(min(16, len(shares.counts)), integer=True))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _draw_bar(axes: Axes, row: int, counts: tuple[int, ...], least: float) -> None:
    """A class is written on its piece where that has so many samples."""
    ends = list(accumulate(counts))
    there = [index for index, count in enumerate(counts) if count]
    pieces = [(ends[index] - counts[index], counts[index]) for index in there]
    colours = [COLOURS[index % len(COLOURS)] for index in there]
    axes.broken_barh(pieces, (row - 0.4, 0.8), facecolors=colours, edgecolors=WHITE, linewidth=0.5)
    for index, (begin, count) in zip(there, pieces, strict=True):
        if count >= least:
            axes.text(begin + count / 2, row, str(index), ha="center", va="center", fontsize=7.5, color=LETTERS)


def _say(name: str, shares: Shares) -> str:
    """The most frequent classes of every worker: all of them would take minutes to hear."""
    return f"{name}: {'; '.join(f'worker {i} {_say_row(row)}' for i, row in enumerate(shares.counts))}"


def _say_row(counts: tuple[int, ...]) -> str:
    most = sorted((index for index, count in enumerate(counts) if count), key=lambda index: -counts[index])[:3]
    return f"{sum(counts):,} samples, most of class {join([str(index) for index in most])}"
