"""One panel per table, one line per route in the same colour everywhere, and the floor."""

from __future__ import annotations

from sample_rows import MIB, make_row

from tutti.lab.bench.picture import make_picture
from tutti.lab.route_looks import find_looks

ROWS = [
    *(
        make_row(route, seconds * size / MIB, size)
        for size in (MIB, 4 * MIB)
        for route, seconds in (("ring", 1e-3), ("star", 4e-3))
    ),
    make_row("star", op="gather"),
]


def test_panels_lines_and_floor() -> None:
    figure = make_picture(ROWS, "loopback\nfloor: memory")
    first, second = figure.axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == [
        "all-reduce · 4 workers · float32",
        "gather · 4 workers · float32",
    ]
    ring, star, floor = first.lines
    assert list(ring.get_xdata()) == [MIB, 4 * MIB]
    assert list(ring.get_ydata()) == [1e-3, 4e-3]
    assert list(floor.get_ydata()) == [1e-4, 1e-4]
    assert second.lines[0].get_color() == star.get_color()
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"ring", "star", "floor"}
    assert any("floor: memory" in text.get_text() for text in figure.texts)


def test_a_route_has_one_colour_whatever_stands_beside_it() -> None:
    rings, stars = ([row for row in ROWS[:4] if row.route == name] for name in ("ring", "star"))
    alone = make_picture(stars, "").axes[0].lines[0]
    among = make_picture([*rings, *stars], "").axes[0].lines[1]
    assert list(alone.get_ydata()) == list(among.get_ydata())
    assert alone.get_color() == among.get_color() == find_looks(["star"])["star"]["color"]


def test_a_single_size_is_a_bar_per_route_and_one_for_the_floor() -> None:
    figure = make_picture([make_row("star", 4e-3), make_row("ring", 1e-3)], "loopback")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["floor", "ring", "star"]
    assert [bar.get_width() for bar in axes.patches] == [1e-4, 1e-3, 4e-3]
    assert not axes.lines
    assert figure.texts[0].get_text() == "all-reduce · 4 workers · float32"


def test_a_single_size_of_several_operations_is_a_panel_each() -> None:
    figure = make_picture([make_row("ring"), make_row("ring", op="gather")], "loopback")
    assert [len(axes.patches) for axes in figure.axes] == [2, 2]
    assert figure.texts[0].get_text() == "time of every route"
