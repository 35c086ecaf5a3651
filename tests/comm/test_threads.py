"""What only the threads of one process share."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from workers import on_threads, side_by_side

from tutti.comm.base import Comm, Mismatch, PeerLost
from tutti.comm.threads import World


@pytest.mark.parametrize("how", ["receive", "send", "exchange", "any", "fork"])
def test_death_of_a_worker_ends_every_wait(how: str) -> None:
    world = World(3, timeout=60)
    comm = world.comm(0)
    fork = comm.fork("lane")
    waits = {
        "receive": lambda: comm.recv(1, torch.zeros(1), "control/x").wait(),
        "send": lambda: comm.send(1, torch.zeros(1), "control/x").wait(),
        "exchange": lambda: comm.exchange([(1, torch.zeros(1))], [(1, torch.zeros(1))], "control/x"),
        "any": lambda: comm.recv_any([1, 2], torch.zeros(1), "control/x"),
        "fork": lambda: fork.recv(1, torch.zeros(1), "control/x").wait(),
    }
    dying = threading.Timer(0.05, lambda: world.abort(2))
    dying.start()
    begun = time.perf_counter()
    with pytest.raises(PeerLost, match=r"worker 2 died while worker 0 waited (for|to send)"):
        waits[how]()
    assert time.perf_counter() - begun < 10
    dying.join()


def test_the_first_death_is_the_one_that_is_named() -> None:
    world = World(3)
    world.abort(2)
    world.abort(1)
    with pytest.raises(PeerLost, match="worker 2 died"):
        world.comm(0).fork("made after it").recv(1, torch.zeros(1), "control/x").wait()


def test_what_came_before_the_death_is_received() -> None:
    world = World(2)
    world.comm(1).send(0, torch.tensor([4.0]), "control/x")
    world.abort(1)
    tensor = torch.zeros(1)
    world.comm(0).recv(1, tensor, "control/x").wait()
    assert tensor.item() == 4.0


def test_received_tensor_is_a_copy() -> None:
    def work(comm: Comm) -> float:
        tensor = torch.full((3,), float(comm.rank))
        if comm.rank == 0:
            comm.exchange([(1, tensor)], [], "control/x")
            tensor.fill_(-1)
            comm.barrier()
        else:
            comm.exchange([], [(0, tensor)], "control/x")
            comm.barrier()
        return tensor.sum().item()

    assert on_threads(2, work) == [-3.0, 0.0]


def test_type_must_match() -> None:
    """Four bytes each: only the type tells them apart."""
    world = World(2)
    world.comm(1).send(0, torch.zeros(3, dtype=torch.int32), "control/x")
    with pytest.raises(Mismatch, match=r"worker 1 sent 3 elements of torch\.int32 where .* 3 of torch\.float32"):
        world.comm(0).recv(1, torch.zeros(3), "control/x").wait()


def test_worlds_do_not_meet() -> None:
    """Two worlds in one process, at the same time."""

    def work(rank: int) -> list[float]:
        total = torch.tensor([float(rank + 1)])
        worlds[rank // 2].comm(rank % 2).all_reduce(total)
        return total.tolist()

    worlds = [World(2), World(2)]
    assert side_by_side(4, work) == [[3.0], [3.0], [7.0], [7.0]]


def test_a_worker_that_closes_its_fork_has_left_it() -> None:
    """Who waits for it there hears it at once, after what it had sent; the wire itself goes on."""
    world = World(2, timeout=600)
    ours, theirs = world.comm(0), world.comm(1)
    here, there = ours.fork("lane"), theirs.fork("lane")
    there.send(0, torch.ones(1), "gradients/3")
    there.close()
    tensor = torch.zeros(1)
    here.recv(1, tensor, "gradients/3").wait()
    assert tensor.item() == 1
    with pytest.raises(
        PeerLost, match=r"^worker 1 has left the run while worker 0 waited for its gradients \(bucket 3\); "
    ):
        here.recv(1, tensor, "gradients/3").wait()
    theirs.send(0, torch.ones(1), "control/x")
    ours.recv(1, tensor, "control/x").wait()


def test_a_worker_whose_function_has_ended_has_left() -> None:
    world = World(2, timeout=600)
    threading.Timer(0.05, world.leave, [1]).start()
    with pytest.raises(PeerLost, match=r"worker 1 has left the run while worker 0 waited for its numbers"):
        world.comm(0).recv(1, torch.zeros(1), "metrics/mean").wait()
