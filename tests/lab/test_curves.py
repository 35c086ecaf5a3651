"""A figure of curves: every line is named, axes read in bytes and seconds, nothing overlaps, files are whole."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tutti.errors import UserError
from tutti.lab.curves import Curve, Panel, check_format, make_figure, plain_curve, save
from tutti.lab.picture import line_look

SIZES = [2.0**power for power in range(12, 27, 2)]


def make_panel(title: str = "all-reduce", routes: int = 3, scale: float = 1e-9) -> Panel:
    curves = [
        Curve(f"route-{n}", [(size, 1e-4 + (n + 1) * scale * size) for size in SIZES], line_look(n))
        for n in range(routes)
    ]
    return Panel(title, [*curves, plain_curve("floor", [(size, scale * size) for size in SIZES], "-")])


def make_bars(routes: int) -> Panel:
    """A single size, with times that are far from each other."""
    curves = [Curve(f"a-route-with-a-name-{n}", [(4096.0, 1e-4 * 2**n)], line_look(n)) for n in range(routes)]
    return Panel("all-reduce", [*curves, plain_curve("floor", [(4096.0, 1e-5)], "-")])


FIGURES = {
    "one": [make_panel(routes=1)],
    "twelve routes": [make_panel(routes=12)],
    "three panels": [make_panel("all-reduce"), make_panel("reduce"), make_panel("broadcast", scale=1e-7)],
    "a size": [make_bars(12)],
    "a size, two panels": [make_bars(2), make_bars(5)],
}


def texts(figure: Figure) -> list[Text]:
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += axes.texts
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            found.append(axis.label)
    return [text for text in found if text.get_text()]


@pytest.mark.parametrize("name", FIGURES)
def test_no_two_texts_overlap_and_none_is_cut_off(name: str) -> None:
    figure = make_figure(FIGURES[name], "time against size", "a note\nof two lines")
    figure.canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        assert Bbox.intersection(first, second) is None, f"{one} and {other} overlap"
    for text, box in boxes:
        assert figure.bbox.fully_contains(box.x0, box.y0), text
        assert figure.bbox.fully_contains(box.x1, box.y1), text


def test_axes_are_logarithmic_and_read_in_bytes_and_seconds() -> None:
    figure = make_figure([make_panel()], "title", "note")
    figure.canvas.draw()
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    labels = [text.get_text() for text in texts(figure)]
    assert {"4 KiB", "16 KiB", "1 MiB", "64 MiB"} <= set(labels)
    assert {"1 ms", "100 µs"} <= set(labels)


def test_the_legend_has_every_line_once_slowest_first_and_the_floor_behind() -> None:
    figure = make_figure([make_panel(routes=2), make_panel(routes=3)], "title", "note")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["route-2", "route-1", "route-0", "floor"]


def test_lines_on_top_of_each_other_show_different_marks() -> None:
    points = [(2.0**n, 1.0) for n in range(10, 60)]
    figure = make_figure([Panel("x", [Curve("a", points, line_look(0)), Curve("b", points, line_look(1))])], "", "")
    first, second = (line.get_markevery()[0] for line in figure.axes[0].lines)
    assert first != second


@pytest.mark.parametrize(("suffix", "begin"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_files_by_their_suffix(tmp_path: Path, suffix: str, begin: bytes) -> None:
    path = tmp_path / f"bench{suffix}"
    check_format(path, "--plot")
    save(make_figure([make_panel()], "title", "note"), path)
    assert path.read_bytes().startswith(begin)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        save(make_figure([make_panel()], "title", "note"), tmp_path / "no" / "bench.png")
    (tmp_path / "bench.png").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        save(make_figure([make_panel()], "title", "note"), tmp_path / "bench.png")
    assert [each.name for each in tmp_path.iterdir()] == ["bench.png"]


def test_another_format_is_refused() -> None:
    with pytest.raises(UserError, match=r"--plot takes a file that ends in .png, .svg or .pdf, not bench.gif"):
        check_format(Path("bench.gif"), "--plot")
