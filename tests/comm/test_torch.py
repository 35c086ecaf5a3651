"""What is special about torch's process groups (a death is not noticed by gloo's receive from any, only a timeout)."""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch
import torch.distributed as dist
from workers import processes

from tutti.comm.base import Clock, PeerLost
from tutti.comm.torch import TorchComm, default_backend


@pytest.fixture
def alone() -> Iterator[TorchComm]:
    comm = TorchComm.join(0, 1, dist.HashStore(), timeout=20.0)
    yield comm
    comm.close()
    assert not dist.is_initialized()


def test_only_the_one_who_made_the_process_group_ends_it(alone: TorchComm) -> None:
    guest = TorchComm.join(0, 1, dist.HashStore(), timeout=20.0)
    guest.close()
    alone.fork("lane").close()
    assert dist.is_initialized()
    alone.barrier()


def test_every_comm_has_a_group_of_its_own(alone: TorchComm) -> None:
    """So that collectives of the user's, on the default group, never interleave with ours."""
    groups = [dist.group.WORLD, alone.group, alone.fork("a").group, alone.fork("a").group]
    assert len({id(group) for group in groups}) == 4


def test_its_operations_are_the_backends_own(alone: TorchComm) -> None:
    assert alone.native is alone
    assert alone.backend == "gloo"


def test_clock_is_the_one_given() -> None:
    clock = Clock()
    comm = TorchComm.join(0, 1, dist.HashStore(), 20.0, clock)
    assert comm.clock is clock
    assert comm.fork("lane").clock is clock
    comm.close()


def test_any_means_all_others(alone: TorchComm) -> None:
    with pytest.raises(ValueError, match="name all others"):
        alone.recv_any([0], torch.zeros(1), "control/x")


def test_backend_by_device() -> None:
    assert default_backend(torch.device("cpu")) == "gloo"
    assert default_backend(torch.device("cuda", 0)) == "cpu:gloo,cuda:nccl"


def die_or_notice(rank: int, port: int, pipe: Connection) -> None:
    """Worker 1 dies; worker 0 says what every kind of call then ends with, and how long that took."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    comm = TorchComm.join(rank, 2, dist.TCPStore("127.0.0.1", port, is_master=False), timeout=20.0)
    send = comm.send(1 - rank, torch.zeros(1), "control/x")
    with pytest.raises(ValueError, match="backend's deadlines only"):
        send.wait(deadline=1.0)
    comm.recv(1 - rank, torch.zeros(1), "control/x").wait()
    send.wait()
    comm.barrier()
    if rank == 1:
        os._exit(0)
    calls = {
        "recv": lambda: comm.recv(1, torch.zeros(1), "control/x").wait(),
        "send": lambda: comm.send(1, torch.zeros(1), "control/x").wait(),
        "exchange": lambda: comm.exchange([(1, torch.zeros(1))], [(1, torch.zeros(1))], "control/x"),
        "all_reduce": lambda: comm.all_reduce(torch.zeros(1)),
        "barrier": comm.barrier,
    }
    begun = time.perf_counter()
    heard = {}
    for name, call in calls.items():
        try:
            call()
            heard[name] = "nothing"
        except PeerLost as error:
            heard[name] = str(error)
        except BaseException:
            heard[name] = traceback.format_exc()
    pipe.send((heard, time.perf_counter() - begun))
    os._exit(0)  # a group with a dead member cannot be closed in good order


def test_death_is_a_lost_peer_in_every_call() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours, theirs = processes.Pipe(duplex=False)
    started = [processes.Process(target=die_or_notice, args=(r, store.port, theirs), daemon=True) for r in range(2)]
    for process in started:
        process.start()
    theirs.close()
    assert ours.poll(40)
    heard, took = ours.recv()
    for name, words in heard.items():
        assert re.match(r"worker 0 lost its gloo group while it exchanged .*: ", words), (name, words)
    assert took < 15
    ours.close()
    for process in started:
        process.join()
