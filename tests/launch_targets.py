"""What the launch tests run on workers: importable, so that processes can find it."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from typing import Any

import torch
from training import set_up, train, weights

from tutti.collectives.base import Collective
from tutti.comm.base import Comm
from tutti.comm.lossy import Lossy
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.launch import Report
from tutti.layout import Layout
from tutti.spec import parse


def add_ranks(comm: Comm, report: Report, note: str = "") -> dict[str, Any]:
    total = torch.tensor([float(comm.rank)])
    comm.all_reduce(total)
    report({"event": "done", "note": note})
    return {"sum": float(total), "size": comm.size, "wire": comm.wire, "threads": torch.get_num_threads()}


def misbehave(comm: Comm, _: Report, how: str, culprit: int) -> None:
    """One worker goes wrong between two barriers; the others wait for it."""
    comm.barrier()
    if comm.rank == culprit:
        if how == "raise":
            raise LookupError("the dog ate it")
        if how == "user":
            raise UserError("this cannot work; that would")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "exit":
            os._exit(7)
    comm.barrier()


def get_stuck(comm: Comm, _: Report, culprit: int, when: str) -> int:
    """One worker comes to a place that it never leaves, in mid-run or when all others have returned."""
    comm.barrier()
    if comm.rank == culprit:
        threading.Event().wait(600)
    if when == "mid-run":
        comm.barrier()
    return comm.rank


def end_at_the_end(comm: Comm, _: Report, how: int) -> str:
    """The function of worker 1 returns, and then its process is stopped or killed."""
    comm.barrier()
    if comm.rank == 1:
        close = comm.close

        def close_and_end() -> None:
            close()
            os.kill(os.getpid(), how)

        comm.close = close_and_end  # type: ignore[method-assign]
    return "the result"


def stop_alone(_: Comm, __: Report) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def harm_oneself(comm: Comm, _: Report, how: int, culprit: int, moment: float) -> int:
    """All meet again and again for half a second; one sends itself a signal at some moment of it."""
    if comm.rank == culprit:
        threading.Timer(moment, os.kill, (os.getpid(), how)).start()
    buffer = torch.ones(1000)
    for _number in range(50):
        comm.all_reduce(buffer)
        time.sleep(0.01)
    return 0


class Nameless(Exception):
    """One whose text cannot be made."""

    def __str__(self) -> str:
        raise LookupError("no text")


def raise_one(comm: Comm, _: Report, which: str) -> None:
    if comm.rank == 1:
        if which == "without a text":
            raise Nameless
        if which == "not permitted":
            raise PermissionError("only on Sundays")
        if which == "unpicklable":
            raise LookupError(threading.Lock())
    comm.barrier()


def return_a_lock(_: Comm, __: Report) -> object:
    return threading.Lock()


def use_all_memory(_: Comm, __: Report) -> None:
    torch.ones(2**40)


def leave_pids(comm: Comm, _: Report, folder: str) -> None:
    """Write this worker's pid down, then work until the end of the world."""
    with open(os.path.join(folder, f"worker-{comm.rank}"), "w") as file:
        file.write(str(os.getpid()))
    while True:
        comm.barrier()
        time.sleep(0.05)


def exchange_with_losses(comm: Comm, _: Report, p: float) -> list[list[int]]:
    """Numbers to and fro, tried and resent in turns; which of those that were tried came, by worker."""
    lossy, other, arrived = Lossy(comm, p, deadline=0.0), 1 - comm.rank, torch.zeros(40, dtype=torch.int64)
    for number in range(40):
        mine, got = torch.tensor([number]), torch.tensor([-1])
        lossy.exchange([(other, mine)], [(other, got)], "weights/0")
        assert got.item() == number
        (here,) = lossy.start_exchange([(other, mine)], [(other, got.fill_(-1))], "weights/0")()
        assert got.item() == (number if here else -1)
        arrived[number] = here
    everybody = torch.zeros(2, 40, dtype=torch.int64)
    comm.all_gather(arrived, everybody)
    return everybody.tolist()


def train_small_models(comm: Comm, _: Report, specs: tuple[str, ...]) -> dict[str, list[bytes]]:
    """Six steps with each of them; everybody's weights, by algorithm."""
    found = {}
    for spec in specs:
        with set_up(comm, spec) as run:
            train(run, range(6))
        found[spec] = comm.gather_bytes(weights(run.replica.model).numpy().tobytes())
    return found


def relay_long_buffers(comm: Comm, _: Report, specs: tuple[str, ...], count: int) -> list[list[bytes]]:
    """Five steps with each of them, of numbers that differ; everybody's result, by spec."""
    found = []
    for spec in specs:
        layout = Layout.of([("x", torch.zeros(count))])
        exchange, buffer = parse(spec, Exchange).setup(comm, layout, "weights/0"), torch.zeros(layout.total)
        for step in range(5):
            buffer[:count] += torch.arange(count).remainder_(7 + comm.rank + step)
            exchange.agree(buffer, step, 1.0)
        found.append(comm.gather_bytes(buffer[:count].numpy().tobytes()))
    return found


def sum_up_what_is_lent(comm: Comm, _: Report, rounds: int) -> bool:
    """Buffers of many lengths in memory that the wire has given out, over one route after another."""
    buffer, good = comm.zeros(3_000_000, torch.float32, torch.device("cpu")), True
    generator = torch.Generator().manual_seed(1)  # the same lengths everywhere
    routes = [parse(name, Collective) for name in ("ring", "halving-doubling", "direct", "double-binary-tree", "star")]
    for number in range(rounds):
        part = buffer[: int(torch.randint(1, len(buffer), (1,), generator=generator))]
        torch.arange(len(part), out=part).remainder_(1000).add_(comm.rank)  # sums of whole numbers are exact
        routes[number % len(routes)].run(comm, part, "gradients/0")
        expected = torch.arange(len(part)).remainder_(1000).mul_(comm.size).add_(sum(range(comm.size)))
        good &= part.equal(expected.float())
    verdict = torch.tensor([float(good)])
    comm.all_reduce(verdict)
    return bool(verdict == comm.size)


def count_new_pages(*_: Any) -> int:
    """Pages that the system gives out for five steps of 80 MB, behind a first one."""

    def step() -> int:
        return len([b"x" * 20_000_000 for _ in range(4)])

    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
