"""Every record is named, nothing overlaps or is cut off, and the bars add up to the step."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from sample_records import make_empty, make_race, make_record

from tutti.lab.labels import make_labels
from tutti.lab.picture import draw, make_figure
from tutti.lab.record import Record

LONG = "gradient-average(all-reduce(ring), bucket={}MiB)"
SETS = {
    "none": [],
    "one": [make_record()],
    "two": [make_record(), make_record("ring", step=0.02)],
    "seven": make_race(),
    "twelve": [
        *make_race(),
        *(make_record(LONG.format(i), hidden=0.003) for i in (1, 2, 4)),
        make_empty(),
        make_record("x"),
    ],
    "twenty": [make_record(LONG.format(i), step=0.01 * i) for i in range(1, 21)],
    "empty": [make_empty()],
    "hour": [make_record(step=300.0), make_record("slow", step=3000.0)],
}


@pytest.fixture(params=SETS, name="records")
def _records(request: pytest.FixtureRequest) -> list[Record]:
    return SETS[request.param]


def shown(axis: Axis) -> list[Text]:
    low, high = sorted(axis.get_view_interval())
    labels = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [*labels, axis.label]


def texts(figure: Figure) -> list[Text]:
    """All that is really drawn."""
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += [*axes.texts, *shown(axes.xaxis), *shown(axes.yaxis)]
    return [text for text in found if text.get_visible() and text.get_text()]


def test_no_two_texts_overlap_and_none_is_cut_off(records: list[Record]) -> None:
    figure = make_figure(records)
    figure.canvas.draw()
    boxes = {(text.get_text(), index): text.get_window_extent() for index, text in enumerate(texts(figure))}
    for (one, first), (other, second) in itertools.combinations(boxes.items(), 2):
        assert Bbox.intersection(first, second) is None, f"{one} and {other} overlap"
    for name, box in boxes.items():
        assert figure.bbox.fully_contains(box.x0, box.y0), name
        assert figure.bbox.fully_contains(box.x1, box.y1), name


def test_names_stand_between_the_panels(records: list[Record]) -> None:
    figure = make_figure(records)
    figure.canvas.draw()
    curves, bars = figure.axes
    for label in make_labels(records, 26):
        box = next(text for text in bars.texts if text.get_text() == label).get_window_extent()
        assert curves.bbox.x1 < box.x0
        assert box.x1 < bars.bbox.x0


def test_every_name_is_in_the_svg(records: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "compare.svg"
    draw(records, path)
    svg = path.read_text()
    for label in make_labels(records, 26):
        assert f">{label}</text>" in svg


def test_the_png_has_its_size(tmp_path: Path) -> None:
    draw(make_race(), tmp_path / "compare.png")
    header = (tmp_path / "compare.png").read_bytes()[:24]
    assert header[:4] == b"\x89PNG"
    assert struct.unpack(">II", header[16:]) == (1200, 500)


def test_the_same_records_make_the_same_svg(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw(make_race(), tmp_path / name)
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()


def test_compute_and_exposed_add_up_and_hidden_lies_under_compute() -> None:
    bars = make_figure([make_record(step=0.010, exposed=0.002, hidden=0.003)]).axes[1]
    compute, exposed, hidden = (patch for patch in bars.patches if isinstance(patch, Rectangle))
    assert (compute.get_x(), compute.get_width()) == pytest.approx((0, 0.008))
    assert (exposed.get_x(), exposed.get_width()) == pytest.approx((0.008, 0.002))
    assert (hidden.get_x(), hidden.get_width()) == pytest.approx((0.005, 0.003))
    assert hidden.get_hatch()
    assert hidden.get_height() < compute.get_height() / 2


def test_a_record_has_one_colour_in_both_panels() -> None:
    curves, bars = make_figure(make_race()).axes
    edges = {patch.get_edgecolor() for patch in bars.patches}
    assert len(edges) == len(curves.lines) == 7
    lines = [artist.get_color() for artist in bars.lines]
    assert lines == [line.get_color() for line in curves.lines]


def test_lines_differ_however_many_there_are() -> None:
    lines = make_figure(SETS["twenty"]).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle(), line.get_markerfacecolor()) for line in lines}) == 20


@pytest.mark.parametrize(("factor", "scale"), [(2, "linear"), (20, "log")])
def test_time_is_logarithmic_where_runs_differ_much(factor: float, scale: str) -> None:
    curves = make_figure([make_record(), make_record("slow", step=0.01 * factor)]).axes[0]
    assert curves.get_xscale() == scale


def test_the_conditions_are_told() -> None:
    notes = [text.get_text() for text in make_figure(make_race()).texts]
    assert any("1 and 4 workers · 2 cores" in note and "torch 2.13.0" in note for note in notes)
