"""Who got what: every sample in a bar, each class in its colour, and nothing where there is nothing to show."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from matplotlib.colors import to_hex, to_rgb
from sample_records import make_empty, make_record

from tutti.lab.record import Record
from tutti.lab.report.page import show_runs
from tutti.lab.report.parts import Paragraph
from tutti.lab.report.shares import COLOURS, LETTERS, make_share_charts, make_shares

COUNTS = [[60, 0, 40, 0, 0, 0, 0, 0, 0, 1], [0, 100, 0, 0, 0, 0, 0, 0, 0, 0], [10] * 10]


def divided(
    counts: Sequence[Sequence[int]] = COUNTS, partition: str = "dirichlet(0.1)", name: str = "ddp", seed: int = 0
) -> Record:
    record = make_record(name, workers=len(counts), partition=partition, seed=seed)
    measurements = [{**m, "classes": list(row)} for m, row in zip(record.measurements, counts, strict=True)]
    return dataclasses.replace(record, measurements=measurements)


@pytest.mark.parametrize("narrow", [False, True])
def test_bars_are_stacked_from_the_classes_of_each_worker(narrow: bool) -> None:
    (chart,) = make_share_charts([divided()])
    (axes,) = chart.draw(narrow).axes
    for row, (counts, bar) in enumerate(zip(COUNTS, axes.collections, strict=True)):
        pieces = [path.get_extents() for path in bar.get_paths()]
        there = [index for index, count in enumerate(counts) if count]
        assert [piece.width for piece in pieces] == pytest.approx([counts[index] for index in there])
        assert [piece.x0 for piece in pieces] == pytest.approx([sum(counts[:index]) for index in there])
        assert all(piece.y0 < row < piece.y1 for piece in pieces)
        assert [to_hex(colour) for colour in bar.get_facecolor()] == [COLOURS[index] for index in there]
    assert axes.get_ylim() == (2.5, -0.5), "worker 0 is on top"


@pytest.mark.parametrize("narrow", [False, True])
def test_a_class_is_written_on_its_piece_where_there_is_room(narrow: bool) -> None:
    (chart,) = make_share_charts([divided()])
    figure = chart.draw(narrow)
    figure.canvas.draw()
    (axes,) = figure.axes
    assert {"0", "1", "2"} <= {text.get_text() for text in axes.texts}
    paths = [path for bar in axes.collections for path in bar.get_paths()]
    pieces = [path.get_extents(axes.transData) for path in paths]
    for text in axes.texts:
        box = text.get_window_extent()
        assert any(p.x0 <= box.x0 and box.x1 <= p.x1 and p.y0 <= box.y0 and box.y1 <= p.y1 for p in pieces)


def test_many_workers_stay_on_a_page() -> None:
    (chart,) = make_share_charts([divided([[5] * 100] * 64)])
    assert chart.height < 800
    assert not chart.draw(narrow=False).axes[0].texts, "no letters on bars that are too thin"
    assert len(chart.keys) == len(COLOURS)
    assert "the colours come again" in chart.caption


def test_the_same_shares_are_shown_once_and_others_beside_them() -> None:
    records = [divided(), divided(name="ring"), divided(COUNTS[::-1], "by-class(2)"), divided(COUNTS[:2])]
    three, two = make_share_charts(records)
    assert three.title == "Classes of every worker, dirichlet(0.1) and by-class(2)"
    assert [axes.get_title(loc="left") for axes in three.draw(False).axes] == ["dirichlet(0.1)", "by-class(2)"]
    assert len(two.panels) == 1
    assert two.draw(False).axes[0].get_title(loc="left") == "", "the heading says it"


def test_seeds_are_named_where_there_are_several() -> None:
    (chart,) = make_share_charts([divided(), divided(COUNTS[::-1], seed=1)])
    assert [axes.get_title(loc="left") for axes in chart.draw(False).axes] == [
        "dirichlet(0.1), seed 0",
        "dirichlet(0.1), seed 1",
    ]


def test_more_than_three_take_another_chart() -> None:
    charts = make_share_charts([divided(COUNTS, f"dirichlet({alpha})") for alpha in (1, 2, 3, 4)])
    assert [len(chart.panels) for chart in charts] == [3, 1]


def test_it_is_read_aloud() -> None:
    (chart,) = make_share_charts([divided()])
    assert "worker 0 101 samples, most of class 0, 2 and 9; worker 1 100 samples, most of class 1;" in chart.spoken


# --- where there is nothing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [[make_record()], [make_record(partition="iid")], [divided([[5, 5]])], [make_empty()]],
    ids=["of an older record", "iid", "one worker", "empty"],
)
def test_where_samples_belong_to_nobody_or_all_to_one_there_is_no_section(records: list[Record]) -> None:
    assert make_shares(records) is None


def test_where_nobody_counted_it_says_so() -> None:
    section = make_shares([make_record(partition="dirichlet(0.1)")])
    assert section is not None
    assert section.parts == [Paragraph("No samples were counted.")]


def test_the_page_has_it_behind_the_learning() -> None:
    sections = show_runs([divided(), make_record("single", workers=1)])
    assert [section.title for section in sections] == ["Results", "Learning", "Who got what", "Steps", "Traffic"]
    assert "Who got what" not in [section.title for section in show_runs([make_record()])]


# --- colours ---------------------------------------------------------------------------------------------------------


def brightness(colour: str) -> float:
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


@pytest.mark.parametrize("colour", COLOURS)
def test_letters_can_be_read_on_every_colour(colour: str) -> None:
    assert (brightness(colour) + 0.05) / (brightness(LETTERS) + 0.05) >= 4.5


def test_ten_classes_have_ten_colours_that_can_be_told_apart() -> None:
    assert len(set(COLOURS)) == 10
    for index, one in enumerate(COLOURS):
        for other in COLOURS[:index]:
            assert sum((a - b) ** 2 for a, b in zip(to_rgb(one), to_rgb(other), strict=True)) > 0.03
