"""Who is told what of a worker's error."""

from __future__ import annotations

import json
import signal

import pytest

from tutti.comm.base import PeerLost
from tutti.errors import RunFailed, UserError
from tutti.failures import Failure, Seen, find_cause, silence


def sent(error: BaseException) -> Failure:
    """As it arrives from another process."""
    return Failure(**json.loads(json.dumps(vars(Failure.of(2, error, 1.5)))))


def test_a_users_mistake_is_the_users() -> None:
    told = sent(UserError("there is no task 'x'")).error()
    assert isinstance(told, UserError)
    assert str(told) == "there is no task 'x'"


def test_a_place_that_may_not_be_read_is_named_without_a_stack() -> None:
    told = sent(PermissionError(13, "Permission denied", "/root/data")).error()
    assert isinstance(told, UserError)
    assert str(told) == "/root/data: Permission denied"


def test_a_lost_peer_is_accused() -> None:
    failure = sent(PeerLost("worker 7 died: its connection to worker 2 was cut", peer=7))
    assert (failure.of_peer, failure.accused) == (True, 7)
    assert str(failure.error()) == "worker 7 died: its connection to worker 2 was cut"


def test_anything_else_is_the_programs_and_brings_its_stack() -> None:
    try:
        raise LookupError("the dog ate it")
    except LookupError as error:
        told = sent(error).error()
    assert isinstance(told, RunFailed)
    assert str(told) == "worker 2 raised LookupError: the dog ate it"
    assert "test_failures.py" in told.__notes__[0]


def test_a_permission_error_without_a_place_is_the_programs() -> None:
    told = sent(PermissionError("only on Sundays")).error()
    assert isinstance(told, RunFailed)
    assert str(told) == "worker 2 raised PermissionError: only on Sundays"


class Nameless(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


def test_an_error_whose_text_cannot_be_made_keeps_its_name() -> None:
    assert str(sent(Nameless()).error()) == "worker 2 raised Nameless: (its text cannot be made: LookupError)"


# --- which of several is the cause -----------------------------------------------------------------------------------


def fails(rank: int, error: Exception, time: float = 0.0) -> Seen:
    return Seen(rank, failure=Failure.of(rank, error, time))


def lost(rank: int, peer: int | None, time: float = 0.0) -> Seen:
    return fails(rank, PeerLost(f"worker {peer} did not answer worker {rank}", peer), time)


GLOO = RuntimeError("Connection closed by peer")
RUNS, FINISHED = Seen(0, silent=0.1), Seen(0, finished=True)


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        ([fails(0, LookupError("dog")), lost(1, 0)], "worker 0 raised LookupError: dog"),
        ([lost(0, 1, 1.0), fails(1, LookupError("dog"), 2.0)], "worker 1 raised LookupError: dog"),
        ([fails(0, LookupError("b"), 2.0), fails(1, LookupError("a"), 1.0)], "worker 1 raised LookupError: a"),
        ([fails(0, GLOO), Seen(1, code=-signal.SIGKILL)], "worker 1 was killed by signal 9 (SIGKILL)"),
        ([fails(0, LookupError("dog")), Seen(1, code=-signal.SIGKILL)], "worker 0 raised LookupError: dog"),
        ([fails(0, GLOO), RUNS], "worker 0 raised RuntimeError: Connection closed by peer"),
        ([lost(0, 1), Seen(1, code=7)], "worker 1 ended with exit code 7 and without a word"),
        (
            [lost(0, 2), Seen(1, silent=9.0), Seen(2, silent=0.1)],
            "worker 1 is stopped or stuck: it gave no sign of life for 9 s",
        ),
        ([lost(0, 1), Seen(1, silent=9.0)], "worker 1 did not answer worker 0"),
        ([lost(0, 3, 1.0), RUNS, lost(2, 1, 3.0), lost(3, 2, 2.0)], "worker 1 did not answer worker 2"),
        ([lost(0, 3), lost(1, 2), lost(4, 2), Seen(2), Seen(3)], "worker 2 did not answer worker 1"),
        ([lost(0, None), lost(2, 1), RUNS], "worker 1 did not answer worker 2"),
    ],
)
def test_the_cause(workers: list[Seen], sentence: str) -> None:
    assert str(find_cause(workers, 5.0)) == sentence


def test_ctrl_c_in_a_worker_is_one() -> None:
    assert isinstance(find_cause([lost(0, 1), Seen(1, code=-signal.SIGINT)], 5.0), KeyboardInterrupt)


@pytest.mark.parametrize("workers", [[RUNS, RUNS], [FINISHED, RUNS], [Seen(0, finished=True, code=-9), RUNS]])
def test_there_is_none(workers: list[Seen]) -> None:
    """A worker that has finished may end as it likes."""
    assert find_cause(workers, 5.0) is None


def test_silence_in_nobodys_words() -> None:
    assert str(silence(Seen(3, silent=61.6))) == "worker 3 is stopped or stuck: it gave no sign of life for 62 s"
