"""One clock for all workers: that of the slowest, without what all of them spend in evaluations."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

import pytest
from sample_records import make_empty, make_older, make_record

from tutti.comm.base import Comm
from tutti.lab.figures import read_figures, say_own_clocks
from tutti.lab.record import Record
from tutti.lab.run import Entry, run_once
from tutti.lab.times import Times
from tutti.launch import LaunchOptions
from tutti.train import Plan, train


def worker(ends: list[float], evaluations: list[tuple[int, float, float]]) -> dict[str, Any]:
    entries = [{"step": step, "enter": enter, "leave": leave} for step, enter, leave in evaluations]
    return {"ends": ends, "evaluations": entries}


def test_steps_are_those_of_the_slowest_worker() -> None:
    times = Times.read([worker([1, 2, 9], [(3, 9, 9)]), worker([2, 4, 6], [(3, 6, 9)])])
    assert times is not None
    assert (times.ends, times.steps, times.total) == ([2, 4, 9], [2, 2, 5], 9)
    assert times.evaluations == [9]
    assert times.waited == [0, 3]


def test_an_evaluation_is_subtracted_only_while_all_evaluate() -> None:
    """The second worker enters at 1 and waits for the first until 5; from then to 7 both evaluate."""
    fast, slow = worker([1, 8], [(1, 1, 7), (2, 8, 14)]), worker([5, 11], [(1, 5, 7.5), (2, 11, 14)])
    times = Times.read([fast, slow])
    assert times is not None
    assert times.evaluations == [5, 11 - 2]
    assert times.ends == [5, 9]
    assert times.total == 9, "the second evaluation begins when training is over"
    assert times.waited == [4 + 3, 0]


def test_who_leaves_before_another_enters_makes_no_pause() -> None:
    times = Times.read([worker([1, 3], [(1, 1, 2), (2, 3, 3)]), worker([5, 6], [(1, 5, 6), (2, 6, 6)])])
    assert times is not None
    assert times.evaluations == [5, 6]


def test_steps_add_up_to_the_whole_and_the_parts_to_the_step() -> None:
    record = make_record(step=0.01, exposed=0.002)
    slow = {**record.measurements[0], "exposed": [0.004] * 41}
    record = dataclasses.replace(record, measurements=[slow, *record.measurements[1:]])
    assert sum(record.all_steps) == pytest.approx(record.train_seconds)
    assert record.step_seconds == pytest.approx(record.train_seconds / record.steps)
    assert record.anatomy["exposed"] == pytest.approx(0.0025), "the mean over all workers"
    assert record.anatomy["compute"] + record.anatomy["exposed"] == pytest.approx(record.step_seconds)


def test_the_first_steps_count_in_the_step_and_not_in_the_median() -> None:
    record = make_record(step=0.01, spread=0.0)
    for measurement in record.measurements:
        measurement["ends"] = [end + 4.1 for end in measurement["ends"]]
    record = dataclasses.replace(record)  # reads its times anew
    (figures,) = read_figures([record], 20)
    assert (figures.step, figures.median) == pytest.approx((0.11, 0.01))
    assert figures.equals(figures)


def test_older_records_have_what_they_had_and_say_so() -> None:
    seconds = [[0.01, 0.02, 0.03], [0.05, 0.05, 0.06]]
    record = make_older(make_record(workers=2, steps=3, accuracies=(0.5,)))
    measurements = [{**m, "seconds": each} for m, each in zip(record.measurements, seconds, strict=True)]
    record = dataclasses.replace(record, measurements=measurements)
    assert record.own_clocks
    assert record.train_seconds == pytest.approx(0.06), "worker 0's own"
    assert record.step_seconds == statistics.median([0.02, 0.03, 0.05, 0.06])
    assert record.evaluations == measurements[0]["evaluations"]
    assert record.row()["anatomy"]["compute"] == pytest.approx(record.step_seconds - 0.002)
    both = read_figures([record, make_record("ring")], 20)
    assert "older records: times of ddp are worker 0's own" in say_own_clocks(both)
    assert say_own_clocks(read_figures([make_record(), make_empty()], 20)) == ""


def test_older_and_new_are_loaded(tmp_path: Any) -> None:
    for name, record in (("old", make_older(make_record())), ("new", make_record())):
        record.save(tmp_path / f"{name}.json")
        assert Record.load(tmp_path / f"{name}.json") == record


# --- a run ------------------------------------------------------------------------------------------------------------


def train_with_last_slow(comm: Comm, report: Any, spec: str, plan: Plan) -> list[dict[str, Any]]:
    slow = dataclasses.replace(plan, task="own_task:make_slow_task")
    return train(comm, report, spec, slow if comm.rank == comm.size - 1 else plan)


def test_a_relay_chain_with_a_slow_worker_is_stamped_with_that_workers_time() -> None:
    """Worker 0, at the other end of the chain, goes ahead within an epoch and waits in the evaluation."""
    plan = Plan(task="own_task:make_task", epochs=3, global_batch=24)
    entry, place = Entry.read("relay-sgd-chain"), LaunchOptions(6, engine="threads")
    record = run_once(entry, plan, place, lambda _: None, train_with_last_slow)
    assert record is not None
    own = [sum(m["seconds"]) for m in record.measurements]
    assert own[0] < own[-1], "or there is nothing to see here"
    assert record.train_seconds >= own[-1]
    assert record.step_seconds * record.steps == pytest.approx(record.train_seconds)
    for evaluation in record.evaluations:
        assert evaluation["seconds"] >= sum(record.measurements[-1]["seconds"][: int(evaluation["step"])])
    assert record.anatomy["exposed"] > 0
    assert record.evaluations[-1]["seconds"] == pytest.approx(record.train_seconds)
