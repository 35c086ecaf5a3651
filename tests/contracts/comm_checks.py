"""What every wire must do at every size, as functions of one worker's comm; every worker of a world runs the same one.

More is asked of wires with tags and single messages: comm_message_checks.py. Values are small whole numbers, so that
every dtype adds them up exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from tutti.comm.base import Comm, Lane, Step
from tutti.comm.lossy import Lossy

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
SHAPES = ((), (0,), (7,), (3, 4))

Check = Callable[[Comm], None]


def value(rank: int, shape: tuple[int, ...], dtype: torch.dtype, what: int = 0) -> Tensor:
    """What worker `rank` holds: known to all, different for everybody, below 16."""
    ramp = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return ((ramp * 5 + rank * 3 + what * 7) % 16).to(dtype)


def cases() -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
    """Two shapes for every type, three types for every shape."""
    return ((SHAPES[n % 2 + more], dtype) for n, dtype in enumerate(DTYPES) for more in (0, 2))


def rooted_cases(comm: Comm) -> Iterator[tuple[int, tuple[int, ...], torch.dtype]]:
    """The cases, with every worker as the root in turn."""
    return ((n % comm.size, *case) for n, case in enumerate(cases()))


def same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def all_of(comm: Comm, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.stack([value(rank, shape, dtype) for rank in range(comm.size)])


# --- on every wire ---------------------------------------------------------------------------------------------------


def exchange_with_everybody(comm: Comm) -> None:
    for shape, dtype in cases():
        sends = [(p, value(comm.rank, shape, dtype, what=p)) for p in comm.others()]
        recvs = [(p, torch.zeros(shape, dtype=dtype)) for p in comm.others()]
        comm.exchange(sends, recvs, "control/check")
        for peer, tensor in recvs:
            same(tensor, value(peer, shape, dtype, what=comm.rank))


def memory_of_the_wires_own(comm: Comm) -> None:
    """It is zero, and what lies in it, short or long, is sent and added up as anything else."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (0, 5, 200_000) if comm.size > 1 else (0, 5):
        out = comm.zeros(count, torch.float32, torch.device("cpu"))
        same(out, torch.zeros(count))
        out += comm.rank + 1
        got, total = torch.zeros(count), torch.ones(count)
        if comm.size > 1:
            comm.exchange([(right, out)], [(left, got)], "control/check")
            comm.accumulate([(right, out)], [(left, total)], "control/check")
            same(got, torch.full((count,), left + 1.0))
            same(total, torch.full((count,), left + 2.0))


def drafts_of_messages(comm: Comm) -> None:
    """What is written in them lands in the turn it was meant for, short or long, and leaves the other turn alone."""
    for count in (0, 5, 200_000):
        turns = [[(p, comm.zeros(count, torch.float32, torch.device("cpu"))) for p in comm.others()] for _ in range(2)]
        drafts = comm.drafts(turns, "control/drafts")
        for step in range(4):
            now, before = turns[step % 2], turns[(step + 1) % 2]
            kept = [tensor.clone() for _, tensor in before]
            for peer, draft in zip(comm.others(), drafts[step % 2], strict=True):
                draft.copy_(value(comm.rank, (count,), torch.float32, what=peer + step))
            sends = list(zip(comm.others(), drafts[step % 2], strict=True))
            comm.exchange(sends, now, "control/check")
            for (peer, tensor), (_, other), was in zip(now, before, kept, strict=True):
                same(tensor, value(peer, (count,), torch.float32, what=comm.rank + step))
                same(other, was)
            comm.barrier()


def exchange_keeps_order(comm: Comm) -> None:
    """Messages of one tag between the same two arrive in the order they were sent, within one call and over calls."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for call in range(3 if comm.size > 1 else 0):
        sends = [(right, value(comm.rank, (n + 1,), torch.float32, what=n + call)) for n in range(3)]
        recvs = [(left, torch.zeros(n + 1)) for n in range(3)]
        comm.exchange(sends, recvs, "control/order")
        for n, (_, tensor) in enumerate(recvs):
            same(tensor, value(left, (n + 1,), torch.float32, what=n + call))


def an_exchange_says_what_came(comm: Comm) -> None:
    """All of it, on a wire that loses nothing; the tensor of what has not come is left alone."""
    for call in range(3):
        sends = [(p, value(comm.rank, (7,), torch.float32, what=p + call)) for p in comm.others()]
        recvs = [(p, torch.full((7,), -1.0)) for p in comm.others()]
        arrived = comm.start_exchange(sends, recvs, "control/try")()
        assert isinstance(comm, Lossy) or arrived == [True] * len(recvs)
        for (peer, tensor), here in zip(recvs, arrived, strict=True):
            same(tensor, value(peer, (7,), torch.float32, what=comm.rank + call) if here else torch.full((7,), -1.0))


def several_exchanges_under_way(comm: Comm) -> None:
    """Short and long ones, all started before the first is complete."""
    lengths = (7, 200_001, 3, 0)
    for call in range(2):
        under_way = []
        for n, length in enumerate(lengths):
            sends = [(p, value(comm.rank, (length,), torch.float32, what=n + call)) for p in comm.others()]
            recvs = [(p, torch.zeros(length)) for p in comm.others()]
            under_way.append((recvs, comm.start_exchange(sends, recvs, f"control/{n}")))
        for n, (recvs, complete) in enumerate(under_way):
            arrived = complete()
            assert isinstance(comm, Lossy) or arrived == [True] * len(recvs)
            for (peer, tensor), here in zip(recvs, arrived, strict=True):
                wanted = value(peer, (lengths[n],), torch.float32, what=n + call)
                same(tensor, wanted if here else torch.zeros_like(wanted))


def exchange_of_nothing(comm: Comm) -> None:
    comm.exchange([], [], "control/nothing")


def accumulate_in_order(comm: Comm) -> None:
    """What comes in is added, whether from one or from many, short or longer than any buffer on the way."""
    for length, dtype in [(0, torch.float32), (7, torch.bfloat16), (7, torch.uint8), (300_001, torch.float64)]:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        got = value(comm.rank, (length,), dtype, what=1)
        sends, recvs = ([(right, value(comm.rank, (length,), dtype))], [(left, got)]) if comm.size > 1 else ([], [])
        comm.accumulate(sends, recvs, "metrics/x")
        wanted = value(comm.rank, (length,), dtype, what=1)
        same(got, wanted + value(left, (length,), dtype) if comm.size > 1 else wanted)
    total = torch.zeros(5)
    comm.accumulate(
        [(p, value(comm.rank, (5,), torch.float32)) for p in comm.others()],
        [(p, total) for p in comm.others()],
        "metrics/y",
    )
    same(total, sum((value(p, (5,), torch.float32) for p in comm.others()), torch.zeros(5)))


def stream_in_order(comm: Comm) -> None:
    """Everybody's numbers go once round in pieces and are added up; what follows a step may use its memory again."""
    for length in (3, 30_000):
        right, left, pieces = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, 4
        totals = torch.zeros(pieces, length)
        passed = [[value(comm.rank, (length,), torch.float32, what=p) for p in range(pieces)]]
        passed += [[torch.full((length,), -1.0) for _ in range(pieces)] for _ in range(1, comm.size)]

        def add(row: int, piece: int, totals: Tensor = totals, passed: list[list[Tensor]] = passed) -> None:
            totals[piece].add_(passed[row][piece])
            passed[row - 1][piece].fill_(-7.0)  # it has been sent

        steps = [
            Step((right, passed[row - 1][p]), (left, passed[row][p]), then=partial(add, row, p))
            for row in range(1, comm.size)
            for p in range(pieces)
        ]
        comm.stream(steps, pieces, "metrics/x")
        for p in range(pieces):
            others = [value(peer, (length,), torch.float32, what=p) for peer in comm.others()]
            same(totals[p], sum(others, torch.zeros(length)))


def stream_adds(comm: Comm) -> None:
    """Without anything that follows; a step may be empty."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sums = [torch.full((length,), 2.0) for length in (5, 0, 40_000)]
    mine = [torch.full_like(each, comm.rank) for each in sums]
    if comm.size > 1:
        steps = [Step((right, out), (left, into), adds=True) for out, into in zip(mine, sums, strict=True)]
        comm.stream([steps[0], Step(None, None), *steps[1:]], 2, "metrics/y")
    for each in sums:
        same(each, torch.full_like(each, 2.0 + (left if comm.size > 1 else 0)))


def broadcast(comm: Comm) -> None:
    for root, shape, dtype in rooted_cases(comm):
        tensor = value(comm.rank, shape, dtype)
        comm.broadcast(tensor, root)
        same(tensor, value(root, shape, dtype))


def reduce(comm: Comm) -> None:
    for root, shape, dtype in rooted_cases(comm):
        tensor = value(comm.rank, shape, dtype)
        comm.reduce(tensor, root)
        if comm.rank == root:
            same(tensor, all_of(comm, shape, dtype).sum(0, dtype=dtype))


def all_reduce(comm: Comm) -> None:
    for shape, dtype in cases():
        tensor = value(comm.rank, shape, dtype)
        comm.all_reduce(tensor)
        same(tensor, all_of(comm, shape, dtype).sum(0, dtype=dtype))


def gather(comm: Comm) -> None:
    for root, shape, dtype in rooted_cases(comm):
        tensor = value(comm.rank, shape, dtype)
        rows = torch.zeros((comm.size, *shape), dtype=dtype) if comm.rank == root else None
        comm.gather(tensor, rows, root)
        same(tensor, value(comm.rank, shape, dtype))
        if rows is not None:
            same(rows, all_of(comm, shape, dtype))


def all_gather(comm: Comm) -> None:
    for shape, dtype in cases():
        rows = torch.zeros((comm.size, *shape), dtype=dtype)
        comm.all_gather(value(comm.rank, shape, dtype), rows)
        same(rows, all_of(comm, shape, dtype))


def scatter(comm: Comm) -> None:
    for root, shape, dtype in rooted_cases(comm):
        tensor = torch.zeros(shape, dtype=dtype)
        comm.scatter(tensor, all_of(comm, shape, dtype) if comm.rank == root else None, root)
        same(tensor, value(comm.rank, shape, dtype))


def reduce_scatter(comm: Comm) -> None:
    for shape, dtype in cases():
        inputs = [value(rank, (comm.size, *shape), dtype) for rank in range(comm.size)]
        out = torch.zeros(shape, dtype=dtype)
        comm.reduce_scatter(inputs[comm.rank].clone(), out)
        same(out, torch.stack(inputs).sum(0, dtype=dtype)[comm.rank])


def all_to_all(comm: Comm) -> None:
    for shape, dtype in cases():
        inputs = torch.stack([value(rank, (comm.size, *shape), dtype) for rank in range(comm.size)])
        out = torch.zeros((comm.size, *shape), dtype=dtype)
        comm.all_to_all(inputs[comm.rank].clone(), out)
        same(out, inputs[:, comm.rank])


def barrier(comm: Comm) -> None:
    """Nobody leaves before the last one has come, whoever that is."""
    for slow in {0, comm.size - 1}:
        if comm.rank == slow:
            time.sleep(0.03)
        came = torch.tensor([comm.clock.now()], dtype=torch.float64)
        comm.barrier()
        left = comm.clock.now()
        everybody = torch.zeros(comm.size, 1, dtype=torch.float64)
        comm.all_gather(came, everybody)
        assert left >= everybody.max().item()


def gather_bytes(comm: Comm) -> None:
    for lengths in ([0, 3, 1000, 1, 0, 7, 2, 5], [0] * 8, [64] * 8):
        everybody = [bytes([65 + rank]) * lengths[rank] for rank in range(comm.size)]
        assert comm.gather_bytes(everybody[comm.rank]) == everybody


def forks_run_side_by_side(comm: Comm) -> None:
    """Lanes on forks exchange at the same time as the main thread, with the same peers and tag."""
    wires = [comm, comm.fork("one"), comm.fork("two")]
    lanes = [Lane(wire, torch.device("cpu")) for wire in wires]
    received = [[(p, torch.zeros(4)) for p in comm.others()] for _ in wires]
    jobs = []
    for n, wire in enumerate(wires):
        sends = [(p, value(comm.rank, (4,), torch.float32, what=n)) for p in comm.others()]
        jobs.append(lanes[n].submit(partial(wire.exchange, sends, received[n], "control/fork")))
    for job in reversed(jobs):
        job.wait()
    for n, messages in enumerate(received):
        for peer, tensor in messages:
            same(tensor, value(peer, (4,), torch.float32, what=n))
    for lane in lanes:
        lane.close()
    for wire in wires[1:]:
        wire.close()


OPERATIONS: list[Check] = [
    exchange_with_everybody,
    memory_of_the_wires_own,
    drafts_of_messages,
    exchange_keeps_order,
    an_exchange_says_what_came,
    several_exchanges_under_way,
    exchange_of_nothing,
    accumulate_in_order,
    stream_in_order,
    stream_adds,
    broadcast,
    reduce,
    all_reduce,
    gather,
    all_gather,
    scatter,
    reduce_scatter,
    all_to_all,
    barrier,
    gather_bytes,
    forks_run_side_by_side,
]
