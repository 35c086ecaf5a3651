"""The table is whole at 100 columns and fits into 80; the finding is true of the records, whatever they are."""

from __future__ import annotations

import io
import math
import subprocess
import sys

import pytest
from rich.console import Console
from sample_records import make_empty, make_race, make_record

from tutti.lab.record import Record
from tutti.lab.table import describe_own_models, finding, make_table

ENDINGS = "; accuracy 97.0 %."


def show(records: list[Record], width: int = 100) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(make_table(records))
    return [line.rstrip() for line in console.export_text().splitlines()]


def words(line: str) -> str:
    return " ".join(line.split())


def test_records_are_read_without_torch() -> None:
    modules = "tutti.lab.table, tutti.lab.picture, tutti.lab.screen, tutti.lab.doctor"
    subprocess.run([sys.executable, "-c", f"import sys, {modules}; assert 'torch' not in sys.modules"], check=True)


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_figure_is_there_at_100_columns() -> None:
    lines = show(make_race())
    assert words(lines[0]) == "workers accuracy loss step speed samples/s sent compute hidden exposed"
    assert words(lines[1]) == "run % ms × single mean ± std per step ms ms ms"
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:10]}
    assert list(rows) == [record.name for record in make_race()]
    assert rows["ddp"][:5] == ["4", "97.0", "0.1000", "14.8", "0.58"]
    assert rows["ddp"][-5:] == ["362", "KiB", "10.2", "3.1", "4.6"]
    assert rows["torch-ddp"][-5] == "~362"
    assert rows["single"][4] == "1.00"
    assert not any("…" in line for line in lines)


def test_at_80_columns_the_most_important() -> None:
    lines = show(make_race(), 80)
    assert words(lines[0]) == "workers accuracy step speed sent exposed"
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_speed_is_relative_to_another_run() -> None:
    long = "gradient-average(all-reduce(star, median))"
    assert "× the first" in show([make_record(long), make_record("ring")])[1]
    assert "speed" not in show([make_record(long)])[0]


def test_numbers_stand_below_each_other() -> None:
    rows = show(make_race())[3:10]
    assert len({len(row) for row in rows}) == 1
    assert len({row.index("±") for row in rows}) == 1


def test_the_caption_says_where_bytes_come_from() -> None:
    text = " ".join(show(make_race()))
    assert "metered on our wire; ~ by formula" in text
    assert "digits · 61,706 parameters" in text
    assert "formula" not in " ".join(show([make_record()]))


def test_the_caption_says_what_was_chosen() -> None:
    assert "ddp chose bucket 2MiB" in " ".join(show([make_record(choices={"bucket": "2MiB"}), make_record("ring")]))
    assert "chose" not in " ".join(show(make_race()))


def test_a_long_name_is_folded_and_nothing_else() -> None:
    name = "gradient-average(all-reduce(ring), bucket=1MiB)"
    lines = show([*make_race(), make_record(name)])
    assert max(map(len, lines)) <= 100
    assert any("362 KiB     8.0    0.0     2.0" in line for line in lines)
    column = lines[0].index("workers")
    assert "".join("".join(line[:column] for line in lines[10:13]).split()) == "".join(name.split())


def test_what_is_missing_is_a_dash() -> None:
    lines = show([make_record(), make_empty()])
    assert words(lines[4]) == "empty 4 – – – – – ± – – – – –"
    assert show([])


def test_slow_steps_are_in_seconds() -> None:
    assert show([make_record(step=12.0, exposed=3.0)])[1].split()[2] == "s"


# --- mean model and own models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ((0.8, 0.9, 0.7, 0.95), "more than any worker's own model (70.0 % to 95.0 %, median 85.0 %)"),
        ((0.96, 0.97, 0.98, 0.99), "the workers' own models 96.0 % to 99.0 % (median 97.5 %)"),
        ((0.98, 0.99, 0.98, 0.99), "less than any worker's own model (98.0 % to 99.0 %, median 98.5 %)"),
        ((0.96, 0.96, 0.96, 0.9699), "the workers' own models 96.0 % to 97.0 % (median 96.0 %)"),
        ((0.97, 0.97, 0.97, 0.9701), "every worker's own model 97.0 %"),
    ],
)
def test_the_mean_model_beside_the_workers_own(own: tuple[float, ...], said: str) -> None:
    lines = describe_own_models([make_record(), make_record("d-psgd", own=own), make_empty()])
    assert lines == [f"d-psgd: the mean model has 97.0 % accuracy, {said}"]


# --- the finding -----------------------------------------------------------------------------------------------------


def test_a_race() -> None:
    assert finding(make_race()) == (
        "Of 6 distributed runs, ddp has the fastest step (14.8 ms, 0.58 times the speed of single), 4.8 times as fast"
        " as all-reduce (71.3 ms, 81 % of it waiting for communication); accuracy 97.0 %."
    )


def test_equal_runs_share_the_first_place() -> None:
    records = [make_record("ddp"), make_record("ring", step=0.0101), make_record("star", step=0.03, exposed=0.001)]
    assert finding(records) == (
        "Of 3 distributed runs, ddp and ring have the fastest steps (10.0 ms to 10.1 ms, equal within noise),"
        " 3 times as fast as star (30.0 ms, 97 % of it computing); accuracy 97.0 %."
    )


def test_all_equal() -> None:
    records = [make_record("ddp"), make_record("ring", step=0.0101)]
    assert (
        finding(records)
        == f"Both distributed runs take equally long per step within noise, 10.0 ms to 10.1 ms{ENDINGS}"
    )
    three = finding([*records, make_record("star"), make_record("single", workers=1)])
    assert three.startswith(
        "All 3 distributed runs take equally long per step within noise, 10.0 ms to 10.1 ms, as fast as"
    )


def test_one_record() -> None:
    assert finding([make_record()]) == f"ddp takes 10.0 ms per step, 80 % of it computing{ENDINGS}"
    assert finding([make_record("single", workers=1)]) == f"single takes 10.0 ms per step{ENDINGS}"


def test_one_distributed_run_against_single() -> None:
    text = finding([make_record("single", workers=1, step=0.02), make_record()])
    assert text == f"ddp takes 10.0 ms per step, 80 % of it computing, 2 times the speed of single{ENDINGS}"


def test_a_small_but_sure_difference_is_not_rounded_away() -> None:
    records = [make_record("ddp", spread=0.0), make_record("ring", step=0.0102, spread=0.0)]
    assert "1.02 times as fast as ring" in finding(records)


def test_runs_of_one_worker_only() -> None:
    text = finding([make_record("a", workers=1), make_record("b", workers=1, step=0.02)])
    assert text == f"Of 2 runs, a has the fastest step (10.0 ms), 2 times as fast as b (20.0 ms){ENDINGS}"


def test_different_work_is_not_compared() -> None:
    text = finding([make_record(), make_record("ring", global_batch=128)])
    assert text == f"The runs differ in task, model or batch, so their steps do not compare{ENDINGS}"


@pytest.mark.parametrize(
    ("accuracies", "clause"),
    [
        ((0.969, 0.972), "accuracy 96.9 % to 97.2 %."),
        ((0.97, 0.82), "accuracy from 82.0 % (b) to 97.0 % (a)."),
        ((0.1, 0.12), "accuracy from 10.0 % (a) to 12.0 % (b)."),
        ((0.115, 0.12), "accuracy 12.0 % at most."),
    ],
)
def test_accuracies(accuracies: tuple[float, float], clause: str) -> None:
    records = [make_record(name, accuracies=[a]) for name, a in zip("ab", accuracies, strict=True)]
    assert finding(records).endswith(f"; {clause}")


def test_a_loss_that_diverged_is_said() -> None:
    bad = make_record("bad", loss=math.nan)
    assert finding([make_record(), bad]).endswith("; accuracy 97.0 %, while the loss of bad diverged.")
    assert finding([bad, make_record("worse", loss=math.inf)]).endswith("; the loss diverged in every run.")
    assert finding([bad]).endswith("; the loss diverged.")


def test_without_figures() -> None:
    assert finding([]) == finding([make_empty()]) == "No run was measured."
    assert finding([make_record(accuracies=())]).endswith("; no accuracy is known.")
    assert finding([make_empty(), make_record()]) == finding([make_record()])


# --- speed and accuracy ----------------------------------------------------------------------------------------------


def test_where_accuracies_differ_every_speed_stands_with_its_accuracy() -> None:
    """The fastest has learnt least, and is not the first where all get."""
    fast = make_record("fast", step=0.010, accuracies=(0.1, 0.15, 0.2))
    slow = make_record("slow", step=0.013, accuracies=(0.25, 0.28, 0.31))
    text = finding([fast, slow])
    assert "fast has the fastest step (10.0 ms, 20.0 % accuracy), 1.30 times as fast as slow (13.0 ms" in text
    assert "of it computing, 31.0 % accuracy);" in text
    assert "20.0 % accuracy, which both reach, is first reached by slow after 169 ms of training" in text
    assert "last by fast after 410 ms;" in text
    assert text.endswith("accuracy from 20.0 % (fast) to 31.0 % (slow).")


def test_where_accuracies_are_the_same_they_stand_once() -> None:
    text = finding([make_record("a"), make_record("b", step=0.02)])
    assert text.count("accuracy") == 1


def test_the_busiest_worker_stands_beside_the_mean() -> None:
    even, uneven = make_record("ring"), make_record("star")
    for rank, measurement in enumerate(uneven.measurements):
        measurement["bytes_per_step"] = 3 * 2**20 if rank == 0 else 2**20
    assert "busiest" not in "\n".join(show([even]))
    text = "\n".join(show([even, uneven]))
    assert "mean / busiest" in text
    assert "1.50 MiB / 3.00 MiB" in text
    assert "362 KiB /" not in text
