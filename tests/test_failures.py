"""Who is told what of a worker's error."""

from __future__ import annotations

import json

from tutti.comm.base import PeerLost
from tutti.errors import RunFailed, UserError
from tutti.failures import Failure


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
