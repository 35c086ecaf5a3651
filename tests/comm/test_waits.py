"""The sentences about a worker that is lost: who, how, and what was waited for."""

from __future__ import annotations

import pytest

from tutti.comm.waits import Wait, describe
from tutti.failures import Failure


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("gradients/3", "gradients (bucket 3)"),
        ("weights/0", "weights (bucket 0)"),
        ("gradients/late", "gradients (late)"),
        ("weights/start", "weights at the start"),
        ("metrics/mean", "numbers for run.mean()"),
        ("control/auto", "message (control/auto)"),
        ("gradients", "gradients"),
    ],
)
def test_a_tag_in_words(tag: str, words: str) -> None:
    assert describe(tag) == words


def test_the_sentences() -> None:
    wait, send, some = (
        Wait(0, (1,), "gradients/3"),
        Wait(0, (1,), "weights/2", sends=True),
        Wait(0, (1, 2), "control/x"),
    )
    assert str(wait.silent(600)) == (
        "worker 1 was silent for 600 s while worker 0 waited for its gradients (bucket 3); a longer --deadline or "
        "distribute(..., timeout=...) waits longer"
    )
    assert str(wait.left()) == (
        "worker 1 has left the run while worker 0 waited for its gradients (bucket 3); if it had fewer batches, use "
        "run.join()"
    )
    assert str(wait.died(1)) == "worker 1 died while worker 0 waited for its gradients (bucket 3)"
    assert str(wait.died(2)) == "worker 2 died while worker 0 waited for the gradients (bucket 3) of worker 1"
    assert str(send.died(1)) == "worker 1 died while worker 0 waited to send weights (bucket 2) to it"
    assert str(send.dead(2)) == "worker 2 is dead: worker 0 waited to send weights (bucket 2) to worker 1"
    assert str(some.left()).startswith("workers 1, 2 have all left the run while worker 0 waited for the message")
    assert str(some.left()).endswith("if they had fewer batches, use run.join()")
    assert str(some.silent(2)).startswith("workers 1, 2 were silent for 2 s while worker 0 waited for the message")


def test_the_one_that_is_lost_is_accused() -> None:
    wait = Wait(0, (1,), "gradients/3")
    for error in (wait.silent(1), wait.left(), wait.died(1), wait.dead(1)):
        assert Failure.of(0, error, 0.0).accused == 1
