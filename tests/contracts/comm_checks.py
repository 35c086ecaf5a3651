"""What every wire must do, as functions of one worker's comm; every worker of a world runs the same one.

`OPERATIONS` hold on every wire at every size, `MESSAGES` on wires with tags and single messages, `DEADLINES` on wires
whose waits can end early. Values are small whole numbers, so that every dtype adds them up exactly.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from workers import SIZES

from tutti.comm.base import LOST, Comm, Lane, Mismatch, PeerLost, Step
from tutti.comm.lossy import Lossy
from tutti.comm.metered import Metered, metered
from tutti.comm.torch import TorchComm

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


def exchange_keeps_order(comm: Comm) -> None:
    """Messages of one tag between the same two arrive in the order they were sent, within one call and over calls."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for call in range(3 if comm.size > 1 else 0):
        sends = [(right, value(comm.rank, (n + 1,), torch.float32, what=n + call)) for n in range(3)]
        recvs = [(left, torch.zeros(n + 1)) for n in range(3)]
        comm.exchange(sends, recvs, "control/order")
        for n, (_, tensor) in enumerate(recvs):
            same(tensor, value(left, (n + 1,), torch.float32, what=n + call))


def try_exchange_says_what_came(comm: Comm) -> None:
    """All of it, on a wire that loses nothing; the tensor of what has not come is left alone."""
    for call in range(3):
        sends = [(p, value(comm.rank, (7,), torch.float32, what=p + call)) for p in comm.others()]
        recvs = [(p, torch.full((7,), -1.0)) for p in comm.others()]
        arrived = comm.try_exchange(sends, recvs, "control/try")
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
    exchange_keeps_order,
    try_exchange_says_what_came,
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


# --- on wires with tags and single messages --------------------------------------------------------------------------


def send_and_recv(comm: Comm) -> None:
    for shape, dtype in cases():
        sends = [comm.send(p, value(comm.rank, shape, dtype, what=p), "control/check") for p in comm.others()]
        for peer in comm.others():
            tensor = torch.zeros(shape, dtype=dtype)
            assert comm.recv(peer, tensor, "control/check").wait() is tensor
            same(tensor, value(peer, shape, dtype, what=comm.rank))
        for send in sends:
            assert send.wait() is not LOST


def tags_in_any_order(comm: Comm) -> None:
    """A message waits for a receive of its own tag, whatever else was sent before or after it."""
    tags = [f"control/{n}" for n in range(4)]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sends = [comm.send(right, value(comm.rank, (n + 1,), torch.int64, what=n), tags[n]) for n in range(4)]
    for n in (2, 0, 3, 1):
        tensor = torch.zeros(n + 1, dtype=torch.int64)
        comm.recv(left, tensor, tags[n]).wait()
        same(tensor, value(left, (n + 1,), torch.int64, what=n))
    for send in sends:
        send.wait()


def receives_posted_before_the_sends(comm: Comm) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    tensors = {tag: torch.zeros(5) for tag in ("control/a", "control/b")}
    receives = [comm.recv(left, tensor, tag) for tag, tensor in tensors.items()]
    comm.barrier()
    sends = [
        comm.send(right, value(comm.rank, (5,), torch.float32, what=n), tag)
        for n, tag in enumerate(["control/b", "control/a"])
    ]
    for pending in (*receives, *sends):
        pending.wait()
    same(tensors["control/b"], value(left, (5,), torch.float32, what=0))
    same(tensors["control/a"], value(left, (5,), torch.float32, what=1))


def receive_from_any(comm: Comm) -> None:
    """Worker 0 hears every other one exactly twice, in whatever order they come."""
    if comm.rank == 0:
        heard = []
        for _ in range(2 * (comm.size - 1)):
            tensor = torch.zeros(3)
            source = comm.recv_any(comm.others(), tensor, "control/any")
            same(tensor, value(source, (3,), torch.float32, what=heard.count(source)))
            heard.append(source)
        assert sorted(heard) == sorted(2 * comm.others())
    else:
        for n in range(2):
            comm.send(0, value(comm.rank, (3,), torch.float32, what=n), "control/any").wait()


def forks_do_not_mix(comm: Comm) -> None:
    """The same peer and tag on a comm, on its fork, on another fork of the same name and on a fork of the fork."""
    first, second = comm.fork("lane"), comm.fork("lane")
    wires = [comm, first, second, first.fork("lane")]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sends = [w.send(right, value(comm.rank, (4,), torch.float32, what=n), "control/x") for n, w in enumerate(wires)]
    for n in (3, 2, 1, 0):
        tensor = torch.zeros(4)
        wires[n].recv(left, tensor, "control/x").wait()
        same(tensor, value(left, (4,), torch.float32, what=n))
    for send in sends:
        send.wait()
    for wire in reversed(wires[1:]):
        wire.close()


def big_messages_both_ways(comm: Comm) -> None:
    """8 MiB to and from the neighbours at once, more than any socket buffers: nobody may wait for room."""
    numel = 2 * 2**20
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine, theirs = value(comm.rank, (numel,), torch.float32), value(left, (numel,), torch.float32)
    landing = torch.zeros(numel)
    comm.exchange([(right, mine)], [(left, landing)], "control/big")
    same(landing, theirs)
    send = comm.send(right, mine, "control/big")
    comm.recv(left, landing.zero_(), "control/big").wait()
    send.wait()
    same(landing, theirs)


def parameters_travel(comm: Comm) -> None:
    """Tensors that require gradients are sent and received as they stand, and no graph is built."""
    parameter = nn.Parameter(value(comm.rank, (6,), torch.float32))
    landing = nn.Parameter(torch.zeros(6))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.exchange([(right, parameter)], [(left, landing)], "control/parameter")
    same(landing.detach(), value(left, (6,), torch.float32))
    plain = torch.zeros(6)
    comm.exchange([(right, parameter)], [(left, plain)], "control/parameter")
    assert landing.is_leaf
    assert not plain.requires_grad


FORKS: list[Check] = [forks_run_side_by_side, forks_do_not_mix]
MESSAGES: list[Check] = [
    send_and_recv,
    tags_in_any_order,
    receives_posted_before_the_sends,
    receive_from_any,
    forks_do_not_mix,
    big_messages_both_ways,
    parameters_travel,
]


# --- on wires whose waits can end early ------------------------------------------------------------------------------


def late_message_is_thrown_away(comm: Comm) -> None:
    """Worker 0 gives worker 1 up twice; both messages come later, and only the third is received."""
    if comm.rank == 0:
        for _ in range(2):
            untouched = torch.full((3,), -1.0)
            assert comm.recv(1, untouched, "control/data").wait(deadline=0.02) is LOST
        comm.send(1, torch.ones(1), "control/go").wait()
        tensor = torch.zeros(3)
        comm.recv(1, tensor, "control/data").wait()
        same(tensor, value(1, (3,), torch.float32, what=2))
        same(untouched, torch.full((3,), -1.0))
    else:
        comm.recv(0, torch.zeros(1), "control/go").wait()
        for n in range(3):
            comm.send(0, value(1, (3,), torch.float32, what=n), "control/data").wait()


def deadline_spares_other_tags(comm: Comm) -> None:
    """What is given up under one tag does not touch a message under another."""
    if comm.rank == 0:
        assert comm.recv(1, torch.zeros(3), "control/lost").wait(deadline=0.02) is LOST
        comm.send(1, torch.ones(1), "control/go").wait()
        tensor = torch.zeros(3)
        comm.recv(1, tensor, "control/kept").wait()
        same(tensor, value(1, (3,), torch.float32))
    else:
        comm.recv(0, torch.zeros(1), "control/go").wait()
        comm.send(0, value(1, (3,), torch.float32), "control/kept").wait()


def deadline_that_is_met(comm: Comm) -> None:
    if comm.rank == 0:
        tensor = torch.zeros(3)
        assert comm.recv(1, tensor, "control/data").wait(deadline=15.0) is tensor
        same(tensor, value(1, (3,), torch.float32))
    else:
        time.sleep(0.02)
        assert comm.send(0, value(1, (3,), torch.float32), "control/data").wait(deadline=15.0) is not LOST


def deadline_of_nothing_takes_what_is_there(comm: Comm) -> None:
    """wait(0) asks without waiting: what has arrived is received."""
    if comm.rank == 0:
        comm.recv(1, torch.zeros(1), "control/sent").wait()
        time.sleep(0.1)
        tensor = torch.zeros(3)
        assert comm.recv(1, tensor, "control/data").wait(deadline=0) is tensor
        same(tensor, value(1, (3,), torch.float32))
        assert comm.recv(1, tensor, "control/data").wait(deadline=0) is LOST
        comm.send(1, torch.ones(1), "control/end").wait()
    else:
        sends = [comm.send(0, torch.ones(1), "control/sent")]
        sends.append(comm.send(0, value(1, (3,), torch.float32), "control/data"))
        comm.recv(0, torch.zeros(1), "control/end").wait()
        for send in sends:
            send.wait()


def silent_peer_is_lost(comm: Comm) -> None:
    """Worker 0 waits for a worker that lives and says nothing: by receive, by exchange, from any."""
    if comm.rank == 0:
        _innermost(comm).timeout = 0.1
        for wait in (
            lambda: comm.recv(1, torch.zeros(3), "control/never").wait(),
            lambda: comm.exchange([], [(1, torch.zeros(3))], "control/never"),
            lambda: comm.recv_any([1], torch.zeros(3), "control/never"),
        ):
            begun = time.perf_counter()
            with pytest.raises(PeerLost, match=r"worker 0 within 0\.1 s"):
                wait()
            assert 0.09 < time.perf_counter() - begun < 10
        comm.send(1, torch.ones(1), "control/end").wait()
    else:
        comm.recv(0, torch.zeros(1), "control/end").wait()


def lengths_must_match(comm: Comm) -> None:
    """A message longer or shorter than the tensor it should go into is an error that says who, what and where."""
    if comm.rank == 0:
        with pytest.raises(Mismatch, match=r"worker 1 sent .* where worker 0 expected .*control/data"):
            comm.recv(1, torch.zeros(3), "control/data").wait()
    else:
        comm.send(0, torch.randn(2000), "control/data")
        time.sleep(0.05)


DEADLINES: list[Check] = [
    late_message_is_thrown_away,
    deadline_spares_other_tags,
    deadline_that_is_met,
    deadline_of_nothing_takes_what_is_there,
    silent_peer_is_lost,
    lengths_must_match,
]


def _innermost(comm: Comm) -> Comm:
    return _innermost(comm.inner) if isinstance(comm, Metered) else comm


# --- all of them in one go, for processes ----------------------------------------------------------------------------


def everything_at_every_size(comm: Comm) -> dict[str, str]:
    """Every check over a process group; the first so many workers form the smaller worlds. How each one went."""
    outcomes = {}
    for size in SIZES:
        group = dist.new_group(list(range(size)))
        if comm.rank < size:
            wire = TorchComm(group, "gloo", comm.timeout, comm.clock)
            for check in checks_of_torch(size):
                outcomes[f"{check.__name__} {size}"] = _outcome(check, wire)
            if size == 3:
                for check in checks_of_torch(size):
                    outcomes[f"{check.__name__} metered"] = _outcome(check, metered(wire))
        comm.barrier()
    return outcomes


def checks_of_torch(size: int) -> list[Check]:
    """A fork is a group of the whole world, so a part of it cannot make one; messages need somebody to go to."""
    checks = [*OPERATIONS, *(MESSAGES if size > 1 else [])]
    return checks if size == max(SIZES) else [check for check in checks if check not in FORKS]


def _outcome(check: Check, comm: Comm) -> str:
    try:
        check(comm)
    except Exception:
        return traceback.format_exc()
    return "passed"
