"""A chart is drawn twice, and what draws it knows which of the two it is drawing."""

from __future__ import annotations

import re

import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from tutti.lab.report.chart import NARROW, WIDE, Chart, Key, is_narrow, line_key


def draw_line(axes: Axes) -> None:
    axes.plot([0, 1], [0, 10])
    axes.set_ylabel("value")


def test_wide_and_narrow_with_caption_and_keys() -> None:
    key = Key("<a bar>", lambda: Rectangle((0, 0), 1, 1))
    html = Chart("A & B", [draw_line], "What < it shows.", keys=[line_key("ring", 0), key]).html("f")
    wide, narrow = re.findall(r'<div class="(wide|narrow)"><svg [^>]*? width="(\d+)"', html)
    assert wide == ("wide", str(WIDE))
    assert narrow == ("narrow", str(NARROW))
    assert "<figcaption>What &lt; it shows.</figcaption>" in html
    assert html.count('role="img" aria-label="A &amp; B. What &lt; it shows."') == 2
    assert html.count("<li>") == 2
    assert "&lt;a bar&gt;</li>" in html


def test_all_ids_of_a_chart_differ() -> None:
    ids = re.findall(r'\bid="(.*?)"', Chart("A", [draw_line] * 2, "B", keys=[line_key("ring", 0)]).html("f"))
    assert len(ids) == len(set(ids)) > 10


@pytest.mark.parametrize("narrow", [True, False])
def test_the_drawing_knows_its_room(narrow: bool) -> None:
    seen: list[bool] = []
    Chart("A", [lambda axes: seen.append(is_narrow(axes))], "B").draw(narrow)
    assert seen == [narrow]


def test_panels_stand_beside_or_below_each_other() -> None:
    chart = Chart("A", [draw_line] * 3, "B", height=200, narrow_height=150)
    for narrow, across, size in ((False, 3, (WIDE, 200)), (True, 1, (NARROW, 450))):
        figure = chart.draw(narrow)
        assert len({axes.get_position().x0 for axes in figure.axes}) == across
        assert (figure.bbox.width, figure.bbox.height) == pytest.approx(size)


def test_shared_panels_have_one_scale_that_is_written_once() -> None:
    def draw_more(axes: Axes) -> None:
        axes.plot([0, 1], [0, 50])
        axes.set_ylabel("value")

    wide = Chart("A", [draw_line, draw_more], "B", shared=True).draw(narrow=False)
    assert [axes.get_ylim() for axes in wide.axes] == [wide.axes[1].get_ylim()] * 2
    assert [axes.yaxis.label.get_visible() and axes.get_ylabel() for axes in wide.axes] == ["value", ""]
    narrow = Chart("A", [draw_line, draw_more], "B", shared=True).draw(narrow=True)
    assert [axes.get_ylabel() for axes in narrow.axes] == ["value", "value"]
