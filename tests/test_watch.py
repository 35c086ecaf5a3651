"""Programs that do not do the same are stopped at once, by name; healthy ones are left alone however slow they are.

The timeout of every wire here is far above what a test may take: what ends a wait is the watch.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ignore, options
from training import set_up, train, weights
from watch_targets import go_apart
from workers import on_shared, on_tcp, on_threads

from tutti import watch
from tutti.comm.base import Comm, PeerLost
from tutti.errors import Desynchronised, RunFailed
from tutti.launch import launch

WIRES = [on_threads, on_tcp, on_shared]
RULE = "all workers must call the same operations in the same order"
FOREVER = 600.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.2)
    monkeypatch.setattr(watch, "TICK", 0.05)


def said(wire: Callable[..., list[Any]], size: int, work: Callable[[Comm], Any]) -> list[RunFailed | None]:
    """What each worker's run ended with."""

    def catch(comm: Comm) -> RunFailed | None:
        try:
            work(comm)
        except RunFailed as error:
            return error
        return None

    return wire(size, catch, timeout=FOREVER)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("algorithm", ["ddp", "d-psgd", "relay-sgd-chain", "allreduce-model(update=bucket)"])
def test_an_operation_on_one_worker_only(wire: Callable[..., list[Any]], algorithm: str) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm, algorithm) as run:
            train(run, range(2))
            if comm.rank == 0:
                run.mean(1.0)
            train(run, range(2, 50))

    errors = said(wire, 3, work)
    assert all(isinstance(error, Desynchronised) for error in errors), errors
    first = str(errors[0])
    assert first.startswith("worker 0 waits in mean() (operation ")
    assert "after step 2) where worker " in first
    assert first.endswith(RULE)
    if algorithm in ("ddp", "allreduce-model(update=bucket)"):
        assert "called backward" in first or "waits in backward" in first
        assert "step 3" in first


def test_consensus_on_one_worker_only_where_workers_differ() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm, "d-psgd") as run:
            train(run, range(2))
            if comm.rank == 1:
                with run.consensus():
                    pass
            train(run, range(2, 50))

    for error in said(on_threads, 3, work):
        assert "worker 1 waits in consensus() (operation 3, after step 2)" in str(error)


def test_consensus_on_one_worker_only_is_fine_where_all_are_equal() -> None:
    """It sends nothing there."""

    def work(comm: Comm) -> None:
        with set_up(comm, "ddp") as run:
            train(run, range(2))
            if comm.rank == 1:
                with run.consensus():
                    time.sleep(0.5)
                run.consensus_state_dict()
            train(run, range(2, 4))

    assert said(on_threads, 3, work) == [None] * 3


@pytest.mark.parametrize("wire", WIRES)
def test_a_worker_that_raised_and_lives_on(wire: Callable[..., list[Any]]) -> None:
    over = threading.Event()

    def work(comm: Comm) -> None:
        try:
            with set_up(comm, "ddp") as run:
                train(run, range(2))
                if comm.rank == 1:
                    raise LookupError("the dog ate it")
                train(run, range(2, 4))
        except LookupError:
            assert over.wait(40), "the others are still waiting"
        except PeerLost:
            over.set()
            raise

    errors = said(wire, 3, work)
    assert errors[1] is None
    for rank in (0, 2):
        assert "worker 1 raised LookupError: the dog ate it, while worker " in str(errors[rank])


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("algorithm", ["ddp", "d-psgd"])
def test_a_worker_that_left_early(wire: Callable[..., list[Any]], algorithm: str) -> None:
    over = threading.Event()

    def work(comm: Comm) -> None:
        try:
            with set_up(comm, algorithm) as run:
                train(run, range(3 - (comm.rank == 1)))
        finally:
            over.set() if comm.rank != 1 else over.wait(40)

    errors = said(wire, 2, work)
    assert errors[1] is None
    assert isinstance(errors[0], PeerLost)
    assert "worker 1 has closed its run, while worker 0 was in " in str(errors[0])


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("algorithm", ["ddp", "d-psgd", "ddp(update=bucket, wait=forward)"])
def test_a_slow_worker_is_not_accused(wire: Callable[..., list[Any]], algorithm: str) -> None:
    """It evaluates for five times as long as others wait before they ask."""

    def work(comm: Comm) -> torch.Tensor:
        with set_up(comm, algorithm) as run:
            for step in range(3):
                train(run, range(step, step + 1))
                if comm.rank == 0:
                    time.sleep(1.0)
            run.mean(1.0)
        return weights(run.replica.model)

    def undisturbed(comm: Comm) -> torch.Tensor:
        with set_up(comm, algorithm) as run:
            train(run, range(3))
        return weights(run.replica.model)

    for found, expected in zip(wire(3, work, timeout=FOREVER), on_threads(3, undisturbed), strict=True):
        assert torch.equal(found, expected)


def test_workers_many_steps_apart_are_not_accused() -> None:
    """A chain whose last worker is slow: the first ones are ahead by a step for each worker between."""
    ahead: list[int] = []

    def work(comm: Comm) -> None:
        with set_up(comm, "relay-sgd-chain") as run:
            for step in range(8):
                train(run, range(step, step + 1))
                if comm.rank == 4:
                    time.sleep(0.3)
                steps[comm.rank] = step
                if comm.rank == 0:
                    ahead.append(step - steps[4])

    steps = [0] * 5
    assert said(on_threads, 5, work) == [None] * 5
    assert max(ahead) > 1, "they were apart"


def test_threads_end_with_their_runs() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            train(run, range(1))

    on_threads(3, work)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tutti-watch")]


def test_messages_of_any_length_fit() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            for _ in range(300):
                with run.operations.during("a name that is rather long " * 3, 10**12):
                    pass
            if comm.rank == 1:
                raise LookupError("x" * 10_000)
            run.mean(1.0)

    def catch(comm: Comm) -> str:
        with pytest.raises((LookupError, PeerLost)) as caught:
            work(comm)
        return str(caught.value)

    assert "worker 1 raised LookupError: xxx" in on_tcp(2, catch, timeout=FOREVER)[0]


# --- over processes --------------------------------------------------------------------------------------------------


def test_a_script_that_ends_by_an_error() -> None:
    """Neither close() nor with: its last words reach the others."""
    program = Path(__file__).with_name("programs") / "ends_by_error.py"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen([sys.executable, str(program), str(rank), port], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=100)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert said[1].endswith("LookupError: the dog ate it\n")
    assert "PeerLost: worker 1 raised LookupError: the dog ate it, while worker 0 was in " in said[0]


def test_over_processes() -> None:
    """One launch for all, since starting processes takes the longest."""
    found = launch(go_apart, (), options(3, timeout=FOREVER, wire="shared", engine="processes"), ignore)
    for rank, sentence in enumerate(found["operation"]):
        expected = "worker 1 waits in mean() (operation 4, after step 2)"
        assert expected in sentence, (rank, sentence)
        assert RULE in sentence
    for rank in (0, 2):
        assert "worker 1 raised LookupError: the dog ate it, while worker " in found["raise"][rank]
        assert "worker 1 has closed its run, while worker " in found["leave"][rank]
    assert found["raise"][1] == "the dog ate it"
    assert found["slow"] == [""] * 3, "a slow worker is not accused"
    for sentence in found["weights"]:
        assert sentence == "weights differ between workers 0 and 1 since step 2: '2.bias'"
    for sentence in found["spec"]:
        assert sentence == "worker 1 runs 'd-psgd' and worker 0 runs 'ddp': all must do the same"
