"""What a child that is forked off a worker does to its parent: nothing. Real forks, real workers, a real DataLoader."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import python
from meshes import mesh, within
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from workers import on_launched

import tutti
from tutti.comm.base import PeerLost
from tutti.comm.rendezvous import WireOptions, connect
from tutti.comm.shared import SharedComm
from tutti.comm.tcp import TcpComm
from tutti.comm.threads import World
from tutti.comm.window import windows
from tutti.errors import RunFailed

LONG = 10**6


def in_child(work: Callable[[], object]) -> None:
    """Run it in a forked child; the test fails if it raises there, or does not come back."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"in the child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    limit = time.monotonic() + 20
    while (status := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < limit:
        time.sleep(0.01)
    if status[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == (child, 0), "the child hangs, or raised"


# --- memory ----------------------------------------------------------------------------------------------------------


def test_a_child_that_drops_memory_frees_none_of_its_parents() -> None:
    held = [windows().zeros(LONG, torch.float32)]
    held[0].fill_(3.0)

    def drop() -> None:
        held.clear()
        gc.collect()

    in_child(drop)
    assert held[0].eq(3.0).all()


def test_a_child_drops_memory_while_a_thread_of_its_parent_holds_the_lock() -> None:
    held, shown = [windows().zeros(LONG, torch.float32)], windows()
    with shown._lock:
        in_child(held.clear)


# --- connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [TcpComm, SharedComm])
def test_a_child_says_no_goodbye_and_hears_that_it_is_no_worker(wire: type[TcpComm]) -> None:
    with mesh(wire, 2) as comms:
        ours, theirs = comms

        def use_it() -> None:
            calls: list[Callable[[], object]] = [
                lambda: ours.recv(1, torch.zeros(1), "control/x").wait(),
                lambda: ours.send(1, torch.zeros(1), "control/x"),
                ours.barrier,
            ]
            for call in calls:
                with pytest.raises(RunFailed, match=r"was forked from worker 0 and is no worker itself"):
                    call()
            ours.close()
            comms.clear()
            gc.collect()

        in_child(use_it)
        theirs.send(0, torch.ones(1), "control/x")
        tensor = torch.zeros(1)
        ours.recv(1, tensor, "control/x").wait()
        assert tensor.item() == 1.0


def test_a_child_of_a_thread_that_is_a_worker() -> None:
    comm = World(2).comm(0)

    def use_it() -> None:
        with pytest.raises(RunFailed, match="was forked from worker 0"):
            comm.barrier()

    in_child(use_it)


def die_and_leave_a_child(kind: str, heard: Path) -> None:
    """Worker 1 is killed while a child of it lives on; worker 0 hears of the death at once."""
    comm = connect(WireOptions(kind, timeout=300))
    comm.barrier()
    if comm.rank == 1:
        child = os.fork()
        if child == 0:
            time.sleep(25)
            os._exit(0)
        comm.send(0, torch.tensor([child]), "control/child").wait()
        os.kill(os.getpid(), signal.SIGKILL)
    child = torch.zeros(1, dtype=torch.int64)
    comm.recv(1, child, "control/child").wait()
    try:
        with within(15), pytest.raises(PeerLost, match="worker 1 died"):
            comm.recv(1, torch.zeros(1), "control/x").wait()
        heard.touch()
    finally:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["shared", "tcp"])
def test_a_child_does_not_hide_its_parents_death(kind: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="without a word"):
        on_launched(2, die_and_leave_a_child, kind, tmp_path / "heard")
    assert (tmp_path / "heard").exists()


# --- a run -----------------------------------------------------------------------------------------------------------


class Copying(TensorDataset):
    """Its samples are looked up in a child of the worker, which drops all it has of the run there."""

    def __getitem__(self, index: int) -> Any:
        if held:
            held.clear()
            gc.collect()
        return super().__getitem__(index)


held: list[Any] = []  # what a script has as its globals


def train_with_a_loader(algorithm: str, persistent: bool) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 600), nn.Tanh(), nn.Linear(600, 1))  # long enough for memory that others see
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tutti.distribute(model, optimizer, algorithm, timeout=30) as run:
        held[:] = [model, optimizer, run]
        data = Copying(torch.randn(24, 300) + run.rank, torch.randn(24, 1))
        loader = DataLoader(
            data, 4, num_workers=2, multiprocessing_context="fork", persistent_workers=persistent, prefetch_factor=2
        )
        for _ in range(2):
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs), targets).backward()
                run.step()
        assert held, "only the children have dropped it"
        run.mean(0.0)
        return [float(p.detach().double().sum()) for p in model.parameters()]


@pytest.mark.parametrize(("algorithm", "persistent"), [("ddp", False), ("allreduce-model", True)])
def test_a_loader_with_forked_workers(algorithm: str, persistent: bool) -> None:
    first, second = on_launched(2, train_with_a_loader, algorithm, persistent)
    assert first == second


FORKS = """
import os, sys, torch, tutti
model = torch.nn.Linear(300, 600)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = tutti.distribute(model, optimizer, "ddp", timeout=20)
child = os.fork()
if child == 0:
    try:
        run.mean(1.0)
    except Exception as error:
        print(error)
    sys.exit(0)  # an ordinary end, with all that Python does at it
assert os.waitpid(child, 0)[1] == 0
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(2, 300)).sum().backward()
    run.step()
print("trained on", run.mean(1.0), run.size)
"""


def fork_and_exit() -> str:
    """The script as one of torchrun's workers, in an interpreter of its own."""
    done = python("-W", "ignore", "-c", FORKS, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_child_that_ends_as_a_script_does() -> None:
    """Worker 0 hosts the store, whose thread the child does not have."""
    for rank, said in enumerate(on_launched(2, fork_and_exit)):
        assert f"was forked from worker {rank} and is no worker itself" in said
        assert "trained on 1.0 2" in said
