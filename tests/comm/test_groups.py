"""Workers of one of torch's process groups, over real processes: all of it, a part of it, again and again."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launching import python
from torch import nn
from workers import on_group, on_launched

import tutti
from tutti.comm import rendezvous
from tutti.comm.base import Comm
from tutti.comm.rendezvous import WireOptions, connect
from tutti.comm.threads import World
from tutti.engine import Run
from tutti.errors import UserError

ALGORITHMS = ("ddp", "allreduce-model", "gradient-average(all-reduce(native))", "torch-ddp")


def train(algorithm: str, seed: int, **options: Any) -> tuple[int, int, list[float]]:
    """A run of three steps on batches that differ: who this worker was, and the weights."""
    torch.manual_seed(seed)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tutti.distribute(model, optimizer, algorithm, timeout=30, **options) as run:
        for _ in range(3):
            optimizer.zero_grad()
            run.model(torch.randn(5, 4)).square().sum().backward()
            run.step()
        return run.rank, run.size, torch.cat([p.detach().view(-1) for p in model.parameters()]).tolist()


# --- the whole of it -------------------------------------------------------------------------------------------------


def train_all() -> list[tuple[int, int, list[float]]]:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "7"}  # of something else: the process group knows better
    return [train(algorithm, dist.get_rank()) for algorithm in ALGORITHMS]


def test_rank_and_size_are_the_groups() -> None:
    first, second = on_group(2, train_all)
    assert [(rank, size) for rank, size, _ in first] == [(0, 2)] * len(ALGORITHMS)
    assert [(rank, size) for rank, size, _ in second] == [(1, 2)] * len(ALGORITHMS)
    assert [weights for *_, weights in first] == [weights for *_, weights in second]


TUTORIAL = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim
import tutti


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = sys.argv[1]
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def demo_basic(rank, world_size):
    setup(rank, world_size)
    torch.manual_seed(rank)
    model = nn.Linear(10, 5)
    optimizer = optim.SGD(model.parameters(), lr=0.001)
    run = tutti.distribute(model, optimizer, "ddp")
    optimizer.zero_grad()
    nn.MSELoss()(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
    run.step()
    print(f"worker {run.rank} of {run.size}: {model.weight.sum().item():.6f}\\n", end="", flush=True)
    run.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(demo_basic, args=(2,), nprocs=2, join=True)
"""


def test_the_official_tutorial(tmp_path: Path) -> None:
    """mp.spawn and init_process_group: rank and size are in no environment variable."""
    script = tmp_path / "tutorial.py"
    script.write_text(TUTORIAL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = python(str(script), str(port), timeout=120)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.partition(":")[0] for line in lines] == ["worker 0 of 2", "worker 1 of 2"]
    assert len({line.partition(":")[2] for line in lines}) == 1, "they have not trained together"


# --- some of its workers ---------------------------------------------------------------------------------------------


def train_in_two_groups(wire: str) -> list[tuple[int, int, list[float]]]:
    """Both at the same time, several runs one after another, and not as many for every worker."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    dist.new_group([0, 1])  # so that members are in different numbers of groups
    seeds = [rank, rank] if rank % 2 else [rank]
    done = [train(name, seed, group=groups[rank % 2], wire=wire) for seed in seeds for name in ALGORITHMS]
    return [*done, train("ddp", rank, wire=wire)]


@pytest.mark.parametrize("wire", ["shared", "torch"])
def test_two_groups_train_beside_each_other(wire: str) -> None:
    runs = on_group(4, train_in_two_groups, wire)
    for rank, done in enumerate(runs):
        assert [place[:2] for place in done] == [(rank // 2, 2)] * (len(done) - 1) + [(rank, 4)]
    assert [weights for *_, weights in runs[0]] == [weights for *_, weights in runs[2]]
    assert [weights for *_, weights in runs[1]] == [weights for *_, weights in runs[3]]
    assert runs[0][0] != runs[1][0]
    assert runs[1][: len(ALGORITHMS)] == runs[1][len(ALGORITHMS) : -1], "the second run of a group is another"


def sum_over_every_second(wire: str) -> list[Any]:
    """All that a wire is asked for, in a group whose ranks are not the job's."""
    group = dist.new_group([3, 1])
    if dist.get_rank() % 2 == 0:
        with pytest.raises(UserError) as refused:
            connect(WireOptions(wire), group=group)
        return [str(refused.value)]
    with pytest.raises(UserError, match="comm= and group= both"):
        tutti.distribute(nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)]), comm=World(1).comm(0), group=group)
    comm = connect(WireOptions(wire, timeout=30), group=group)
    found = [operate(each) for each in (comm, comm.fork("a"), comm.fork("a"), comm.native)]
    comm.close()
    return found


def operate(comm: Comm) -> list[Any]:
    total, started, got = torch.tensor([comm.rank + 1.0]), torch.tensor([float(comm.rank)]), torch.zeros(1)
    comm.all_reduce(total)
    comm.broadcast(started, root=1)
    peer = 1 - comm.rank
    send = comm.send(peer, torch.tensor([float(comm.rank)]), "control/x")
    assert comm.recv_any([peer], got, "control/x") == peer
    send.wait()
    comm.exchange([(peer, torch.tensor([5.0 + comm.rank]))], [(peer, started)], "control/x")
    rows = torch.zeros(2, 1) if comm.rank == 1 else None
    comm.gather(total, rows, root=1)
    comm.scatter(got, rows, root=1)
    comm.reduce(torch.ones(1), root=1)
    return [total.item(), started.item(), got.item(), comm.gather_bytes(b"%d" % comm.rank)]


@pytest.mark.parametrize("wire", ["tcp", "torch"])
def test_every_operation_in_a_group(wire: str) -> None:
    said = on_group(4, sum_over_every_second, wire)
    for rank in (0, 2):
        assert said[rank] == [
            f"this process (rank {rank}) is no member of the group given: only its members may call "
            "distribute(..., group=...)"
        ]
    assert said[1] == [[3.0, 6.0, 3.0, [b"0", b"1"]]] * 4
    assert said[3] == [[3.0, 5.0, 3.0, [b"0", b"1"]]] * 4


def train_alone() -> tuple[int, int, list[float]]:
    groups = [dist.new_group([0]), dist.new_group([1])]
    return train("ddp", 3, group=groups[dist.get_rank()])


def test_groups_of_one() -> None:
    first, second = on_group(2, train_alone)
    assert first == second
    assert first[:2] == (0, 1)


def test_a_group_without_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="init_process_group first"):
        connect(group=dist.GroupMember.NON_GROUP_MEMBER)
    monkeypatch.setattr(rendezvous.here, "comm", World(1).comm(0), raising=False)
    with pytest.raises(UserError, match="threads have no process group"):
        connect(group=dist.GroupMember.NON_GROUP_MEMBER)


def refuse_nonsense() -> None:
    with pytest.raises(UserError, match=r"group must be a process group of .*new_group, not list"):
        connect(group=[0, 1])  # type: ignore[arg-type]


def test_what_is_no_group() -> None:
    on_group(1, refuse_nonsense)


# --- on one comm, again and again ------------------------------------------------------------------------------------


def train_on_one_comm() -> tuple[list[Any], bool]:
    comm = connect(WireOptions(timeout=30))
    runs = [train(name, comm.rank, comm=comm) for _ in range(4) for name in ("all-reduce", "torch-ddp", "all-gather")]
    with two_runs(comm) as (first, second):
        total = torch.tensor([1.0])
        first.lane.comm.native.all_reduce(total)
        first.close()
        second.lane.comm.native.all_reduce(total)
        runs.append(total.item())
    before = dist.is_initialized()
    comm.close()
    return runs, before or dist.is_initialized()


@contextmanager
def two_runs(comm: Comm) -> Iterator[list[Run]]:
    """At the same time, each with a native group."""
    models = [nn.Linear(2, 1) for _ in range(2)]
    runs = [tutti.distribute(m, torch.optim.SGD(m.parameters(), lr=0.1), "all-reduce", comm=comm) for m in models]
    yield runs
    for run in runs:
        run.close()


def test_runs_with_a_native_route_follow_each_other_on_one_comm() -> None:
    """Every group finds the addresses of its own workers, not those of a run before."""
    (first, left), (second, right) = on_launched(2, train_on_one_comm)
    assert first[-1] == second[-1] == 4.0
    assert [run[2] for run in first[:-1]] == [run[2] for run in second[:-1]]
    assert len({tuple(run[2]) for run in first[:-1]}) <= 3
    assert (left, right) == (False, False), "a process group of ours is left"
