"""Labels are short and distinct; conditions name what the runs share and list what they do not."""

from __future__ import annotations

from sample_records import make_empty, make_race, make_record

from tutti.lab.labels import describe_choices, describe_conditions, describe_rates, join, make_labels, shorten

LONG = "gradient-average(all-reduce(ring), bucket={}MiB)"


def test_a_long_name_keeps_both_ends() -> None:
    assert shorten("ddp", 12) == "ddp"
    assert shorten(LONG.format(1), 20) == "gradient-a…ket=1MiB)"
    assert len(shorten(LONG, 20)) == 20


def test_labels_are_the_names_where_these_differ() -> None:
    assert make_labels(make_race(), 26) == [record.name for record in make_race()]


def test_equal_names_get_their_workers() -> None:
    records = [make_record(workers=n) for n in (1, 2, 16)] + [make_record("ring")]
    assert make_labels(records, 26) == ["ddp on 1", "ddp on 2", "ddp on 16", "ring"]


def test_equal_runs_get_a_number() -> None:
    assert make_labels([make_record(), make_record()], 26) == ["ddp on 4 #1", "ddp on 4 #2"]


def test_labels_are_distinct_and_short_whatever_the_names() -> None:
    names = [f"{'a' * 30}{i}{'b' * 30}" for i in range(3)]
    labels = make_labels([make_record(name) for name in names], 20)
    assert len(set(labels)) == 3
    assert max(map(len, labels)) <= 20


def test_choices_of_those_that_had_one() -> None:
    records = [make_record("a", choices={"bucket": "2MiB", "route": "ring"}), make_record("b"), make_empty("c")]
    assert describe_choices(records, ["one", "two", "three"]) == ["one chose bucket 2MiB, route ring"]


def test_whose_learning_rate_is_which_where_they_differ() -> None:
    records = [make_record("a"), make_record("b"), make_record("c")]
    for record in records[:2]:
        record.plan["lr"] = 0.1
    assert " · lr 0.1 · " in describe_conditions(records)
    assert describe_rates(records[:2], ["a", "b"]) == []
    records[1].plan["lr"] = 0.32
    assert describe_rates(records, ["a", "b", "c"]) == ["lr: a 0.1, b 0.32"]
    assert " · lr 0.1 and 0.32 · " in describe_conditions(records)


def test_conditions() -> None:
    assert describe_conditions(make_race()) == (
        "digits · 61,706 parameters · global batch 64 · 3 epochs · 1 and 4 workers · 2 cores · A Processor @ 2.80GHz"
        " · torch 2.13.0+cpu · tutti 0.1.0 · 2026-01-31"
    )


def test_conditions_that_differ_are_listed() -> None:
    records = [
        make_record(workers=n, model=m) for n, m in ((1, "lenet-5"), (2, "vgg-11"), (4, "vgg-11"), (8, "vgg-11"))
    ]
    text = describe_conditions(records)
    assert "lenet-5 and vgg-11" in text
    assert "1 to 8 workers" in text


def test_lost_messages_are_a_condition() -> None:
    none, some, many = make_record(), make_record(), make_record()
    some.plan["loss"], many.plan["loss"] = 0.1, 0.125
    assert "lost" not in describe_conditions([none])
    assert " · 4 workers · 10 % of messages lost · 2 cores" in describe_conditions([some])
    assert "0 %, 10 % and 12.5 % of messages lost" in describe_conditions([none, some, many])


def test_threads_are_a_condition() -> None:
    record = make_record()
    record.launch["engine"] = "threads"
    assert " · 4 workers · threads of one process · " in describe_conditions([record])
    assert "threads" not in describe_conditions([make_record()])


def test_one_is_singular() -> None:
    assert " · 1 worker · " in describe_conditions([make_record(workers=1)])
    assert " · 11 workers · " in describe_conditions([make_record(workers=11)])


def test_conditions_of_nothing() -> None:
    assert describe_conditions([]) == ""
    assert "digits" in describe_conditions([make_empty()])


def test_words_are_joined_as_in_a_sentence() -> None:
    assert [join(["a"]), join(["a", "b"]), join(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_a_partition_is_named_where_samples_belong_to_somebody() -> None:
    assert "iid" not in describe_conditions([make_record(), make_record(partition="iid")])
    assert " · dirichlet(0.1) · " in describe_conditions([make_record(partition="dirichlet(0.1)")])
    mixed = describe_conditions([make_record(), make_record(partition="dirichlet(0.1)")])
    assert " · iid and dirichlet(0.1) · " in mixed


def test_equal_names_get_their_partition_where_there_are_several() -> None:
    records = [make_record(partition=f"dirichlet({alpha})") for alpha in (1, 0.1)]
    assert make_labels(records, 26) == ["ddp on 4, dirichlet(1)", "ddp on 4, dirichlet(0.1)"]
    long = make_labels([make_record(LONG, partition="quantity-skew(0.5, least=0.1)"), make_record(LONG)], 20)
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 20
