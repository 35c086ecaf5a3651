"""Every sentence can be counted in the records, and none is said where there is nothing to count."""

from __future__ import annotations

import math

import pytest
from sample_records import make_empty, make_learning_race, make_race, make_record

from tutti.lab.report.facts import make_facts

LOADS = (
    ("gather-scatter", "362 KiB per step are 29.6 ms", "60 %"),
    ("all-gather", "723 KiB per step are 59.3 ms", "100 %"),
    ("all-reduce", "362 KiB per step are 29.6 ms", "42 %"),
    ("ring", "362 KiB per step are 29.6 ms", "100 %"),
    ("ddp", "362 KiB per step are 29.6 ms", "100 %"),
    ("torch-ddp", "362 KiB per step are 29.6 ms", "100 %"),
)


def test_a_race() -> None:
    assert make_facts(make_learning_race()) == [
        "Most is sent by all-gather: 723 KiB per worker and step, 2 times as much as by the 5 others.",
        *(
            f"{name} is limited by the link of host 0, outwards: {load} at 100 Mbit/s, {share} of its step."
            for name, load, share in LOADS
        ),
        "More than half of a step is waiting for communication in all-gather (82 %), all-reduce (81 %) "
        "and gather-scatter (68 %).",
        "ddp hides 40 % of its communication behind computing, more than any other.",
    ]


def test_one_run_says_little() -> None:
    assert make_facts([make_record(hidden=0.002)]) == ["ddp hides 50 % of its communication behind computing."]
    assert make_facts([make_record("single", workers=1, exposed=0.0)]) == []


def test_what_was_chosen_is_told() -> None:
    assert make_facts([make_record(choices={"bucket": "2MiB"})])[0] == "ddp chose bucket 2MiB."


def test_the_mean_model_stands_beside_the_workers_own() -> None:
    apart = make_record("d-psgd", own=(0.8, 0.9, 0.7, 0.95))
    sentence = "d-psgd: the mean model has 97.0 % accuracy, more than any worker's own model"
    assert make_facts([make_record(), apart])[1] == f"{sentence} (70.0 % to 95.0 %, median 85.0 %)."
    assert not [fact for fact in make_facts([apart] * 5) if "mean model" in fact], "of many runs the table tells"


def test_nothing_measured_says_nothing() -> None:
    assert make_facts([make_empty()]) == []
    assert make_facts([]) == []


def test_what_is_missing_is_told() -> None:
    assert make_facts([make_record(), make_empty()])[0] == "There are no measurements of empty."


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((1000.0, 1000.0), "All distributed runs send the same: 0.977 KiB per worker and step."),
        ((1024.0, 3072.0), "Most is sent by b: 3.00 KiB per worker and step, 3 times as much as by a."),
        ((0.0, 3072.0), "Most is sent by b: 3.00 KiB per worker and step; nothing is sent by a."),
        (
            (1024.0, 2048.0, 3072.0),
            "Most is sent by c: 3.00 KiB per worker and step, 3 times as much as by a.",
        ),
    ],
)
def test_who_sends_most(sizes: tuple[float, ...], sentence: str) -> None:
    records = [make_record(name, nbytes=size) for name, size in zip("abc", sizes, strict=False)]
    assert make_facts(records)[0] == sentence


def test_different_work_is_not_compared() -> None:
    facts = " ".join(make_facts([make_record("a", nbytes=1.0), make_record("b", nbytes=9.0, global_batch=128)]))
    assert "Most is sent" not in facts
    assert "accuracy" not in facts
    assert "The runs differ in global batch: see the conditions." in facts


# --- waiting and hiding ----------------------------------------------------------------------------------------------


def test_who_waits_where_nobody_waits_long() -> None:
    facts = make_facts([make_record("a", exposed=0.001), make_record("b", exposed=0.004)])
    assert (
        "No distributed run spends more than half of its step waiting for communication; the most is 40 %, by b."
        in facts
    )
    assert "No communication worth mentioning is hidden behind computing." in facts


def test_equals_share_their_place() -> None:
    facts = make_facts([make_record(name, hidden=0.002) for name in "ab"] + [make_record("c", exposed=0.001)])
    assert "the most is 20 %, by a and b." in facts[1]
    assert facts[2] == "a and b hide 50 % of their communication behind computing, more than any other."
    assert not any("accuracy" in fact for fact in facts), "nobody is first where all are equally fast"


def test_many_who_wait_are_counted() -> None:
    facts = make_facts([make_record(str(i), exposed=0.006 + 0.0001 * i) for i in range(9)])
    assert (
        "More than half of a step is waiting for communication in 9 of 9 distributed runs, most of all 8 (68 %)."
        in (facts)
    )


# --- accuracy --------------------------------------------------------------------------------------------------------


def test_who_is_first_at_what_all_reach() -> None:
    slow = make_record("slow", step=0.02, accuracies=(0.3, 0.8, 0.9))
    fast = make_record("fast", accuracies=(0.2, 0.95, 0.9))
    assert (
        "90.0 % accuracy is reached by all 2 runs: first by fast, after 270 ms of training, "
        "and last by slow, after 820 ms." in make_facts([slow, fast])
    )


def test_where_accuracies_differ_the_finding_says_it() -> None:
    records = [make_record("slow", step=0.02), make_record("fast", accuracies=(0.6, 0.7, 0.8))]
    assert not any("accuracy" in fact for fact in make_facts(records))


@pytest.mark.parametrize("accuracies", [(0.1, 0.2), ()])
def test_learning_little_is_no_race(accuracies: tuple[float, ...]) -> None:
    facts = make_facts([make_record("a", accuracies=accuracies), make_record("b", accuracies=accuracies)])
    assert not any("accuracy" in fact for fact in facts)


def test_a_run_that_diverged_reaches_nothing() -> None:
    records = [make_record("a"), make_record("b", step=0.02), make_record("c", step=0.03, loss=math.nan)]
    (fact,) = (fact for fact in make_facts(records) if "accuracy" in fact)
    assert "reached by 2 runs that did not diverge: first by a" in fact
    assert "last by b" in fact


def test_what_was_lost_is_counted() -> None:
    records = [make_record(name) for name in "abcdef"]
    assert not any("lost" in fact for fact in make_facts(records))
    records[0].measurements[1]["lost"], records[0].measurements[2]["lost"] = 1000, 234
    records[1].measurements[0]["lost"] = 5
    assert "Messages lost on their way: 1,234 of a and 5 of b." in make_facts(records)
    for record in records[2:]:
        record.measurements[0]["lost"] = 1
    assert "1,243 messages were lost on their way, in 6 of the runs." in make_facts(records)


# --- conditions ------------------------------------------------------------------------------------------------------


def test_differing_conditions_are_told() -> None:
    records = [make_record(), make_record("ring", network={"asked": "hosts(1Gbit)"}, lr=0.2)]
    records[1].machine["cores"] = 64
    assert make_facts(records)[-1] == "The runs differ in machine, network and lr: see the conditions."
    assert not any("differ" in fact for fact in make_facts(make_race()))


def test_older_records_lost_nothing_and_divided_nothing() -> None:
    older, newer, lossy = make_record("a"), make_record("b"), make_record("c")
    newer.plan.update(loss=0.0, partition="iid")
    lossy.plan.update(loss=0.1)
    assert not any("differ" in fact for fact in make_facts([older, newer]))
    assert make_facts([older, lossy])[-1] == "The runs differ in loss: see the conditions."
