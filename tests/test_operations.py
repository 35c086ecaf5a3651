"""The log of operations, and the sentence about two that differ."""

from __future__ import annotations

import pytest

from tutti.operations import Operations, Report, describe_difference


def log(text: str) -> Operations:
    """One letter per operation: s step, m mean, c consensus; a capital letter is not complete."""
    names = {"s": "step", "m": "mean", "c": "consensus"}
    operations, steps = Operations(), 0
    for letter in text:
        if letter.isupper():
            operations.enter(names[letter.lower()], steps)
            break
        with operations.during(names[letter], steps):
            pass
        steps += letter == "s"
    return operations


def describe(one: str, other: str) -> str:
    reports = [Report.from_bytes(log(text).report(rank).to_bytes()) for rank, text in enumerate((one, other))]
    return describe_difference(*reports)


@pytest.mark.parametrize(("one", "other"), [("", ""), ("sss", "sss"), ("s", "ssss"), ("", "sS"), ("sm", "smsM")])
def test_workers_may_be_any_number_of_operations_apart(one: str, other: str) -> None:
    assert describe(one, other) == ""


def test_the_first_difference_is_named_on_both_sides() -> None:
    rule = "all workers must call the same operations in the same order"
    assert describe("ssC", "ssssS") == (
        "worker 0 waits in consensus() (operation 3, after step 2) "
        f"where worker 1 called run.step() (operation 3, step 3): {rule}"
    )


def test_what_is_no_longer_known_is_not_made_up() -> None:
    assert describe("m" + "s" * 150, "s" * 151) == (
        "workers 0 and 1 called different operations before operation 52: "
        "all workers must call the same operations in the same order"
    )
    assert describe("m" + "s" * 150, "s") == "", "nothing is known of both"


def test_one_within_another_does_not_count() -> None:
    operations = Operations()
    with operations.during("any", 0), operations.during("sums", 0):
        assert operations.inside
        assert operations.completed == 0
    assert [entry.name for entry in operations.entries] == ["any"]
    assert operations.completed == 1


def test_one_that_failed_is_not_complete_and_its_cause_is_raised() -> None:
    operations = Operations()
    operations.on_error = lambda error: KeyError("cause") if isinstance(error, ValueError) else error
    with pytest.raises(KeyError, match="cause"), operations.during("mean", 3):
        raise ValueError
    with pytest.raises(OSError, match="its own"), operations.during("mean", 3):
        raise OSError("its own")
    assert operations.completed == 0
    assert not operations.inside
