"""The lines are the evaluations, the bars are the steps, and what cannot be drawn is told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from sample_records import make_empty, make_learning_race, make_race, make_record

from tutti.lab.record import Record
from tutti.lab.report.chart import Chart
from tutti.lab.report.charts import make_accuracy_chart, make_distance_chart, make_loss_chart, make_step_chart


def panels(chart: Chart | None, narrow: bool = False) -> list[Axes]:
    assert chart is not None
    return chart.draw(narrow).axes


def drawn(axes: Axes) -> list[list[tuple[float, float]]]:
    return [list(zip(*line.get_data(), strict=True)) for line in axes.lines]


@pytest.mark.parametrize("narrow", [True, False])
def test_accuracy_over_epochs_seconds_and_bytes(narrow: bool) -> None:
    record = make_record(accuracies=(0.5, 0.9), nbytes=3 * 2**20)
    epochs, seconds, sent = panels(make_accuracy_chart([record]), narrow)
    evaluations = record.evaluations
    assert drawn(epochs) == [[(1, 50), (2, 90)]]
    np.testing.assert_allclose(drawn(seconds)[0], [(e["seconds"], 100 * e["accuracy"]) for e in evaluations])
    np.testing.assert_allclose(drawn(sent)[0], [(3, 50), (6, 90)])
    assert sent.get_xlabel() == "MiB sent by worker 0"


def test_every_record_has_its_line_and_its_key() -> None:
    records = make_race()
    chart = make_accuracy_chart(records)
    assert chart is not None
    epochs, seconds, sent = panels(chart)
    assert [key.text for key in chart.keys] == [record.name for record in records]
    assert [len(axes.lines) for axes in (epochs, seconds, sent)] == [7, 7, 6]
    assert "Without a line over bytes, as none were counted: single." in chart.caption
    assert [line.get_color() for line in sent.lines] == [line.get_color() for line in epochs.lines[1:]]


def test_without_any_bytes_there_is_no_panel_for_them() -> None:
    old = make_record()
    for entry in old.measurements[0]["evaluations"]:
        entry.pop("bytes", None)
    for records in ([make_record("single", workers=1, nbytes=0.0)], [old]):
        assert len(panels(make_accuracy_chart(records))) == 2


@pytest.mark.parametrize("records", [[make_record(accuracies=())], [make_empty()], []])
def test_without_evaluations_there_is_no_chart(records: list[Record]) -> None:
    assert make_accuracy_chart(records) is None
    assert make_loss_chart(records) is None


def test_what_was_not_evaluated_has_no_key() -> None:
    chart = make_accuracy_chart([make_empty(), make_record("ring")])
    assert chart is not None
    assert [key.text for key in chart.keys] == ["ring"]


@pytest.mark.parametrize(("factor", "scale"), [(2, "linear"), (20, "log")])
def test_seconds_and_bytes_are_logarithmic_where_runs_differ_much(factor: float, scale: str) -> None:
    slow = make_record("slow", step=0.01 * factor, nbytes=370_302.0 * factor)
    epochs, seconds, sent = panels(make_accuracy_chart([make_record(), slow]))
    assert epochs.get_xscale() == "linear"
    assert seconds.get_xscale() == sent.get_xscale() == scale
    assert seconds.get_xlabel().endswith("(logarithmic)") == (scale == "log")


def test_round_numbers_keep_their_noughts() -> None:
    """100 was once written 1."""
    records = [make_record(step=0.5), make_record("slow", step=10.0)]
    seconds = panels(make_accuracy_chart(records))[1]
    seconds.figure.draw_without_rendering()
    labels = [label.get_text() for label in seconds.get_xticklabels()]
    assert "100" in labels
    assert [float(label) for label in labels] == pytest.approx(list(seconds.get_xticks()))


# --- loss ------------------------------------------------------------------------------------------------------------


def test_a_loss_begins_at_zero_or_is_logarithmic() -> None:
    close, far = make_record(losses=(0.5, 0.4, 0.3)), make_record(losses=(2.0, 0.1, 0.01))
    assert panels(make_loss_chart([close]))[0].get_ylim()[0] == 0
    axes = panels(make_loss_chart([far]))[0]
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "test loss (logarithmic)"


def test_a_loss_that_is_no_number_has_no_point_and_is_told() -> None:
    records = [make_record("fine"), make_record("star", losses=(2.0, math.nan, math.inf))]
    chart = make_loss_chart(records)
    assert chart is not None
    assert "not a finite number there is no point: star." in chart.caption
    assert drawn(panels(chart)[0])[1] == [(1, 2.0)]


def test_when_no_loss_is_a_number_there_is_no_chart() -> None:
    assert make_loss_chart([make_record(loss=math.nan)]) is None


def test_huge_losses_are_written_as_powers() -> None:
    axes = panels(make_loss_chart([make_record(losses=(2.0, 1e30, math.inf))]))[0]
    axes.figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert "10³⁰" in labels
    assert max(map(len, labels)) <= 5


def test_what_is_read_aloud_has_the_figures() -> None:
    accuracy, loss = make_accuracy_chart(make_learning_race()), make_loss_chart(make_learning_race())
    assert accuracy is not None
    assert "at the end single 97.3 %, gather-scatter 96.9 %" in accuracy.spoken
    assert loss is not None
    assert "all-gather –" in loss.spoken


# --- distance from consensus -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("narrow", [True, False])
def test_distances_over_steps(narrow: bool) -> None:
    records = [make_record("ddp"), make_record("d-psgd", distances=(4.0, 3.0, 2.0)), make_empty()]
    chart = make_distance_chart(records)
    assert chart is not None
    (axes,) = panels(chart, narrow)
    assert drawn(axes) == [[(13, 4.0), (27, 3.0), (41, 2.0)]]
    assert axes.get_ylim()[0] == 0
    assert [key.text for key in chart.keys] == ["d-psgd"]
    assert "Without a line, as none was measured: ddp and empty." in chart.caption
    assert "At the end d-psgd 2.00." in chart.spoken
    colours = [line.get_color() for line in panels(make_accuracy_chart(records))[0].lines]
    assert axes.lines[0].get_color() == colours[1], "the same colour as in the other charts"


def test_distances_that_differ_much_are_logarithmic() -> None:
    (axes,) = panels(make_distance_chart([make_record("d-psgd", distances=(4.0, 0.3, 0.01))]))
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "distance (logarithmic)")
    (axes,) = panels(make_distance_chart([make_record("d-psgd", distances=(4.0, 0.3, 0.0))]))
    assert axes.get_yscale() == "linear", "zero has no place on the other"


@pytest.mark.parametrize("distances", [(), (math.nan,) * 3])
def test_without_distances_there_is_no_chart(distances: tuple[float, ...]) -> None:
    assert make_distance_chart([make_record(distances=distances), make_empty()]) is None


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("narrow", [True, False])
def test_the_bars_add_up_to_the_step(narrow: bool) -> None:
    (axes,) = panels(make_step_chart([make_record(step=0.010, exposed=0.002, hidden=0.003)]), narrow)
    spans = [(patch.get_x(), patch.get_width()) for patch in axes.patches]  # type: ignore[attr-defined]
    np.testing.assert_allclose(spans, [(0, 0.008), (0.008, 0.002), (0.005, 0.003)])


def test_names_stand_before_the_bars_or_over_them() -> None:
    names = [record.name for record in make_race()]
    (wide,), (narrow,) = (panels(make_step_chart(make_race()), narrow) for narrow in (False, True))
    assert [label.get_text() for label in wide.get_yticklabels()] == names
    over = [text for text in narrow.texts if text.get_text() in names]
    assert [text.get_text() for text in over] == names
    tops = [patch.get_y() for patch in narrow.patches[:1]]  # type: ignore[attr-defined]
    assert over[0].get_position()[1] < tops[0]


def test_hidden_communication_is_explained_only_where_there_is_some() -> None:
    for hidden, count in ((0.0, 2), (0.001, 3)):
        chart = make_step_chart([make_record(hidden=hidden)])
        assert chart is not None
        assert len(chart.keys) == count


def test_a_run_without_steps_is_named_beside_the_others() -> None:
    (axes,) = panels(make_step_chart([make_record(), make_empty()]))
    assert "– not measured" in [text.get_text() for text in axes.texts]
    assert make_step_chart([make_empty()]) is None
