"""One panel per table, one line per route in the same colour everywhere, and the floor."""

from __future__ import annotations

from sample_rows import MIB, make_row

from tutti.lab.bench.picture import make_picture

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


def test_one_worker_has_no_floor_to_draw() -> None:
    figure = make_picture([make_row(workers=1, floor=0.0)], "")
    assert len(figure.axes[0].lines) == 1
    assert figure.texts[0].get_text() == "all-reduce · 1 worker · float32"
