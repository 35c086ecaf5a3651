"""Who a process is, according to its launcher, and how it finds the others."""

from __future__ import annotations

import math
import os
import socket
import time
from contextlib import nullcontext
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from workers import processes

import tutti
from tutti.comm import rendezvous, stores
from tutti.comm.base import PeerLost
from tutti.comm.rendezvous import Place, WireOptions, connect, find_place, here
from tutti.comm.shared import SharedComm
from tutti.comm.threads import World
from tutti.comm.torch import TorchComm
from tutti.errors import UserError


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE", "TUTTI_SECRET") or name.startswith(("SLURM_", "MASTER_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    return monkeypatch


# --- the launcher's environment --------------------------------------------------------------------------------------


def test_no_launcher() -> None:
    assert find_place({"PATH": "/bin"}) is None


def test_torchrun() -> None:
    env = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node7", "MASTER_PORT": "4321"}
    assert find_place(env) == Place(rank=5, size=8, local_rank=1, master="node7", port=4321)


def test_torchrun_wins_over_slurm() -> None:
    """torchrun started inside of an allocation: its ranks are the workers, not Slurm's tasks."""
    env = {"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    place = find_place(env)
    assert place is not None
    assert (place.rank, place.size) == (1, 2)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node[03-05,07]", "node03"),
        ("node[03-05,07],gpu1", "node03"),
        ("gpu1,gpu2", "gpu1"),
        ("tux3", "tux3"),
        ("n-1-[12,14-16]", "n-1-12"),
        ("rack[1-2]node[07-09]", "rack1node07"),
        ("node[1-2].example.org", "node1.example.org"),
        ("login,node[1-4]", "login"),
        ("10.0.0.[4-7]", "10.0.0.4"),
    ],
)
def test_slurm(nodes: str, first: str) -> None:
    env = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "1234567"}
    place = find_place(env | {"SLURM_STEP_NODELIST": nodes, "SLURM_JOB_NODELIST": "other"})
    assert place == Place(rank=3, size=4, local_rank=1, master=first, port=20000 + 1234567 % 20000)
    assert find_place(env | {"SLURM_JOB_NODELIST": nodes}) == place


def test_slurm_with_a_master_of_ones_own() -> None:
    env = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "a[1-2]"}
    place = find_place(env | {"MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "555"})
    assert place is not None
    assert (place.master, place.port) == ("10.1.1.1", 555)


def test_one_task_of_slurm_is_alone() -> None:
    assert find_place({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None


# --- connect ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("alone")
def test_alone() -> None:
    comm = connect()
    assert (type(comm), comm.rank, comm.size) == (SharedComm, 0, 1)
    comm.close()


@pytest.mark.usefixtures("alone")
def test_alone_over_torch() -> None:
    comm = connect(WireOptions(wire="torch"))
    assert (type(comm), comm.rank, comm.size) == (TorchComm, 0, 1)
    comm.close()
    assert not dist.is_initialized()


def test_thread_of_a_launch_has_its_wire_already(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = World(2).comm(1)
    monkeypatch.setattr(here, "comm", comm, raising=False)
    assert connect() is comm


def test_unknown_wire() -> None:
    with pytest.raises(UserError, match="there is no wire 'pigeon'; there is shared, tcp, torch"):
        connect(WireOptions(wire="pigeon"))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("timeout", ["60", 0, -1.0, math.nan, math.inf, True, None])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    with pytest.raises(UserError, match="timeout must be a number of seconds above 0"):
        connect(WireOptions(timeout=timeout))
    model = torch.nn.Linear(1, 1)
    with pytest.raises(UserError, match="timeout must be a number of seconds above 0"):
        tutti.distribute(model, torch.optim.SGD(model.parameters()), timeout=timeout)


def test_port_in_use(alone: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": str(port)}.items():
            alone.setenv(name, value)
        with pytest.raises(UserError, match=f"port {port} is in use; choose another with"):
            connect(WireOptions(timeout=2.0))


def test_master_that_is_not_there(alone: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": str(port)}.items():
        alone.setenv(name, value)
    begun = time.perf_counter()
    with pytest.raises(PeerLost, match=rf"worker 1 could not reach the master at 127\.0\.0\.1:{port} within 1 s"):
        connect(WireOptions(timeout=1.0))
    assert time.perf_counter() - begun < 15


def meet_twice(rank: int, port: int, pipe: Connection) -> None:
    """As under torchrun: two connections one after the other, then a third over torch."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    totals = []
    for wire in ("tcp", "tcp", "torch"):
        comm = connect(WireOptions(wire=wire, timeout=20.0))
        total = torch.tensor([rank + 1.0])
        comm.all_reduce(total)
        totals.append(total.item())
        comm.close()
    pipe.send(totals)


def test_two_processes_meet_as_often_as_they_like() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pipes = [processes.Pipe(duplex=False) for _ in range(2)]
    started = [processes.Process(target=meet_twice, args=(r, port, pipes[r][1]), daemon=True) for r in range(2)]
    for process in started:
        process.start()
    for (ours, theirs), process in zip(pipes, started, strict=True):
        assert ours.poll(30)
        assert ours.recv() == [3.0, 3.0, 3.0]
        ours.close()
        theirs.close()
        process.join()


# --- the secret ------------------------------------------------------------------------------------------------------

PLACES = [Place(rank, 2, rank, "127.0.0.1", 1) for rank in range(2)]


def test_secret_of_the_launcher(alone: pytest.MonkeyPatch) -> None:
    alone.setenv("TUTTI_SECRET", "from the launcher")
    store = dist.HashStore()
    assert rendezvous._secret(PLACES[0], store, 1.0) == b"from the launcher"
    assert not store.check(["secret"]), "a secret that the launcher hands out must not be published"


@pytest.mark.usefixtures("alone")
def test_secret_of_worker_0_lies_open_and_that_is_said_once() -> None:
    stores.warn_of_open_secret.cache_clear()
    secrets = []
    for number in range(2):
        store = dist.HashStore()
        with pytest.warns(match="TUTTI_SECRET is not set") if number == 0 else nullcontext():
            ours, theirs = (rendezvous._secret(place, store, 1.0) for place in PLACES)
        assert ours == theirs
        assert len(ours) >= 32
        secrets.append(ours)
    assert secrets[0] != secrets[1]


@pytest.mark.usefixtures("alone")
def test_worker_0_that_publishes_no_secret() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=30))
    begun = time.perf_counter()
    with pytest.raises(PeerLost, match=r"worker 0 did not arrive within 0\.2 s"):
        rendezvous._secret(PLACES[1], store, 0.2)
    assert time.perf_counter() - begun < 10
