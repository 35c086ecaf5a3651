"""What only shared memory can do wrong: who may share it, wrapping round, sleeping and waking, leftovers."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from launch_targets import sum_up_what_is_lent
from meshes import mesh
from workers import make_tls, on_shared, side_by_side

from tutti.comm import link, pipes, shared
from tutti.comm.base import LOST, Comm, PeerLost
from tutti.comm.handshake import Access
from tutti.comm.pipes import POSITIONS, Pipe, Pipes
from tutti.comm.shared import SharedComm
from tutti.comm.window import windows
from tutti.engine import distribute
from tutti.launch import LaunchOptions, launch

ACCESS = Access("127.0.0.1", b"known to all", timeout=20.0)


def left_behind() -> list[Path]:
    return list(Path("/dev/shm").glob("tutti-*"))


# --- who shares ------------------------------------------------------------------------------------------------------


def test_workers_of_one_machine_share_and_leave_no_file() -> None:
    before = set(left_behind())
    with mesh(SharedComm, 3) as comms:
        assert [comm.wire for comm in comms] == ["shared"] * 3
        assert set(left_behind()) <= before


def test_workers_of_two_machines_use_sockets_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers 0 and 1 on one, worker 2 on another; all operations work across."""
    here = threading.local()
    monkeypatch.setattr(shared, "_find_machine", lambda: here.name)

    def work(rank: int) -> tuple[str, float]:
        here.name = "one" if rank < 2 else "other"
        comm = SharedComm(rank, 3, store, ACCESS)
        total = torch.full((200_000,), float(rank + 1))
        comm.all_reduce(total)
        comm.barrier()
        comm.close()
        return comm.wire, total.sum().item()

    store = dist.HashStore()
    assert side_by_side(3, work) == [("shared", 1.2e6), ("shared", 1.2e6), ("tcp", 1.2e6)]


def test_two_addresses_of_one_machine_share_however_slow_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_is_here", lambda _: False)
    monkeypatch.setattr(link, "_round_trip", lambda connection: 0.05 * len(connection.getsockname()))
    assert on_shared(2, lambda comm: comm.all_reduce(torch.ones(200_000)) or comm.wire) == ["shared", "shared"]


def test_where_memory_is_full_the_sockets_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_make_file", lambda _: ("", None))
    assert on_shared(2, lambda comm: comm.wire) == ["tcp", "tcp"]


def test_encrypted_runs_share_nothing(tmp_path: Path) -> None:
    assert on_shared(2, lambda comm: comm.wire, tls=make_tls(tmp_path)) == ["tcp", "tcp"]


def test_other_processors_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.platform, "machine", lambda: "aarch64")
    assert shared._find_machine() == ""


def test_a_file_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(left_behind())

    def refuse(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared.os, "posix_fallocate", refuse)
    assert shared._make_file(1000) == ("", None)
    assert set(left_behind()) <= before


# --- in order --------------------------------------------------------------------------------------------------------


def test_of_two_messages_that_look_alike_the_first_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first one arrives just behind the look for it, and before the look for the second."""
    fetch, looked = Pipes.fetch, threading.local()

    def too_early(pipes: Pipes, code: int, tensor: torch.Tensor) -> bool | None:
        looked.times = getattr(looked, "times", 0) + 1
        return looked.times % 3 > 0 and fetch(pipes, code, tensor)

    monkeypatch.setattr(Pipes, "fetch", too_early)

    def work(comm: Comm) -> list[float]:
        peer, seen = 1 - comm.rank, []
        for number in range(20):
            landings = [torch.zeros(3) for _ in range(3)]
            sends = [(peer, torch.full((3,), float(3 * number + place))) for place in range(3)]
            comm.exchange(sends, [(peer, landing) for landing in landings], "weights/0")
            seen += [landing[0].item() for landing in landings]
        return seen

    assert on_shared(2, work) == [[float(number) for number in range(60)]] * 2


# --- round the ring --------------------------------------------------------------------------------------------------


def test_messages_of_all_lengths_pass_the_end_of_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe of 4 KiB, and messages below, at and above its length, in both directions at once."""
    monkeypatch.setattr(shared, "_ROOM", 0)
    monkeypatch.setattr(shared, "_LEAST_ROOM", 4096)

    def work(comm: Comm) -> bool:
        good, peer = True, 1 - comm.rank
        for length in [1, 100, 500, 1004, 1019, 1020, 1021, 1024, 5000, 40_000, 3] * 6:
            mine = torch.arange(length, dtype=torch.float32) + comm.rank
            theirs, total = torch.zeros(length), mine.clone()
            comm.exchange([(peer, mine)], [(peer, theirs)], "control/x")
            comm.accumulate([(peer, mine)], [(peer, total)], "control/x")
            good &= theirs.equal(mine - comm.rank + peer) and total.equal(mine + theirs)
        return good

    assert on_shared(2, work) == [True, True]


@pytest.mark.parametrize("before", range(0, 128, 4))
def test_a_short_message_goes_round_the_end_at_once(before: int) -> None:
    """Wherever the end cuts it: in the header, in the body, or not at all."""
    pipe = Pipe(memoryview(bytearray(POSITIONS + 128)))
    assert pipe.put([bytes(before)]) == pipe.take(memoryview(bytearray(before))) == before
    sent, landed = torch.arange(16, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
    assert pipe.fetch(7, landed) is False
    assert pipe.post(7, sent) is True
    assert pipe.fetch(8, landed) is None
    assert pipe.fetch(7, landed) is True
    assert landed.equal(sent)
    assert pipe.filled() == 0


def test_what_has_come_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Giving way to others in the hope that it will look different does not help."""
    with mesh(SharedComm, 2) as (ours, theirs):
        messages = {"a": torch.ones(3), "b": torch.arange(200_000.0), "c": torch.zeros(5)}
        for tag, message in messages.items():
            ours.exchange([(1, message)], [], f"control/{tag}")
        monkeypatch.setattr(SharedComm, "_give_way", lambda _: pytest.fail("it gives way"))
        for tag, message in reversed(messages.items()):
            landing = torch.full_like(message, -1)
            theirs.exchange([], [(0, landing)], f"control/{tag}")
            assert landing.equal(message)


def test_short_messages_keep_behind_long_ones() -> None:
    """A short message could go at once, but not before a long one that waits for room."""
    with mesh(SharedComm, 2) as (ours, theirs):
        long, short = torch.arange(5e6), torch.full((3,), 7.0)
        sends = [ours.send(1, long, "control/x"), ours.send(1, short, "control/x")]
        got_long, got_short = torch.zeros(5_000_000), torch.zeros(3)

        def receive() -> None:
            theirs.exchange([], [(0, got_long)], "control/x")
            theirs.exchange([], [(0, got_short)], "control/x")

        thread = threading.Thread(target=receive)
        thread.start()
        for send in sends:
            send.wait()
        thread.join(10)
        assert got_long.equal(long)
        assert got_short.equal(short)


def test_a_message_of_another_tag_is_put_aside() -> None:
    with mesh(SharedComm, 2) as (ours, theirs):
        ours.exchange([(1, torch.tensor([1.0]))], [], "control/a")
        ours.exchange([(1, torch.tensor([2.0]))], [], "control/b")
        second, first = torch.zeros(1), torch.zeros(1)
        theirs.exchange([], [(0, second)], "control/b")
        theirs.exchange([], [(0, first)], "control/a")
        assert (first.item(), second.item()) == (1.0, 2.0)


# --- loans -----------------------------------------------------------------------------------------------------------

LONG = 300_000  # elements: more than goes at once


def lend(comm: Comm, count: int = LONG) -> torch.Tensor:
    return comm.zeros(count, torch.float32, torch.device("cpu"))


def test_what_is_lent_arrives_among_all_kinds_of_messages() -> None:
    """Lent or not, long or short, from the middle of a piece; into memory, into a sum, put aside for later."""
    generator = torch.Generator().manual_seed(0)
    lengths = [int(n) for n in torch.randint(1, 2 * LONG, (60,), generator=generator)]

    def work(comm: Comm) -> bool:
        good, peer, plain, lent = True, 1 - comm.rank, torch.zeros(2 * LONG), lend(comm, 2 * LONG)
        for number, length in enumerate(lengths):
            numbers = torch.arange(length, dtype=torch.float32) + number
            mine, theirs = numbers + 1000 * comm.rank, numbers + 1000 * peer
            out = (plain if number % 5 == 0 else lent)[2 * LONG - length :].copy_(mine)
            got, total = torch.zeros(length), mine.clone()
            comm.exchange([(peer, out)], [(peer, got)], "control/x")
            comm.accumulate([(peer, out)], [(peer, total)], "control/y")
            later, sent = torch.zeros(length), comm.send(peer, out, "control/z")
            comm.barrier()  # what comes before it was not asked for yet
            comm.recv(peer, later, "control/z").wait()
            sent.wait()
            good &= got.equal(theirs) and total.equal(mine + theirs) and later.equal(theirs)
        return good

    assert on_shared(2, work) == [True, True]


def test_a_loan_is_complete_when_it_is_back() -> None:
    with mesh(SharedComm, 2) as (ours, theirs):
        lent, got = lend(ours).fill_(3), torch.zeros(LONG)
        send = ours.send(1, lent, "control/x")
        assert send.wait(0.05) is LOST
        receive = theirs.recv(0, got, "control/x")
        assert receive.wait() is got
        assert send.wait() is lent
        lent.fill_(4)
        assert got.eq(3).all()


def test_nothing_goes_through_the_ring_but_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Pipe.put
    passed: list[int] = []

    def count(pipe: Pipe, parts: list[bytes]) -> int:
        passed.append(sum(map(len, parts)))
        return put(pipe, parts)

    monkeypatch.setattr(Pipe, "put", count)

    def work(comm: Comm) -> None:
        lent, total = lend(comm), torch.zeros(LONG)
        comm.accumulate([(1 - comm.rank, lent)], [(1 - comm.rank, total)], "control/x")

    on_shared(2, work)
    assert passed
    assert max(passed) < 1000


def test_sums_of_an_odd_place_are_right() -> None:
    """Elements that begin at no multiple of their width cannot be added where they are."""

    def work(comm: Comm) -> bool:
        odd = comm.zeros(4 * LONG + 1, torch.uint8, torch.device("cpu"))[1:]
        odd.copy_(torch.arange(LONG, dtype=torch.float32).view(torch.uint8))
        total = torch.ones(LONG)
        comm.accumulate([(1 - comm.rank, odd)], [(1 - comm.rank, total)], "control/x")
        return total.equal(torch.arange(LONG, dtype=torch.float32) + 1)

    assert on_shared(2, work) == [True, True]


def test_real_processes_lend_on_every_route() -> None:
    assert launch(sum_up_what_is_lent, (10,), LaunchOptions(3), lambda _: None)


def test_what_is_trained_lies_where_peers_can_see_it() -> None:
    """Weights, gradients, and where what is relayed lands."""

    def work(comm: Comm) -> list[bool]:
        model = torch.nn.Linear(600, 600)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with distribute(model, optimizer, "relay-sgd-chain", comm=comm) as run:
            (bucket,) = run.replica.buckets
            (branch,) = run.algorithm._exchanges[0]._branches  # type: ignore[attr-defined]
            seen = (model.weight, bucket.grads, branch.known, branch.landing)
            return [windows().find(tensor.data_ptr(), tensor.nbytes) is not None for tensor in seen]

    assert on_shared(2, work) == [[True] * 4] * 2


def test_where_windows_cannot_be_seen_nothing_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(pipes, "Outlook", refuse)

    def work(comm: Comm) -> tuple[str, bool, bool]:
        mine, got = lend(comm).fill_(comm.rank + 1), torch.zeros(LONG)
        comm.exchange([(1 - comm.rank, mine)], [(1 - comm.rank, got)], "control/x")
        return comm.wire, windows().find(mine.data_ptr(), 4) is None, bool(got.eq(2 - comm.rank).all())

    assert on_shared(2, work) == [("shared", True, True)] * 2


def test_a_peer_that_dies_with_a_loan_is_named() -> None:
    with mesh(SharedComm, 2) as (ours, theirs):
        send = ours.send(1, lend(ours), "control/x")
        theirs._links[0].connection._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        with pytest.raises(PeerLost, match="worker 1"):
            send.wait()


# --- sleeping --------------------------------------------------------------------------------------------------------


def test_a_sleeper_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever writes, and by whoever makes room; without wake-up calls it would sleep for an hour."""
    monkeypatch.setattr(shared, "_NAP", 3600.0)

    def work(comm: Comm) -> None:
        buffer = torch.zeros(1_000_000)
        if comm.rank == 0:
            time.sleep(0.2)
            comm.exchange([(1, torch.ones(1))], [], "control/x")
            comm.exchange([(1, buffer)], [], "control/y")  # more than there is room for: sleeps until worker 1 reads
        else:
            comm.exchange([], [(0, torch.zeros(1))], "control/x")
            time.sleep(0.2)
            comm.exchange([], [(0, buffer)], "control/y")

    on_shared(2, work, timeout=10.0)


def test_it_sleeps_while_it_waits() -> None:
    """Waiting a third of a second costs a small part of that in computing."""
    with mesh(SharedComm, 2) as (ours, theirs):
        timer = threading.Timer(0.3, lambda: theirs.exchange([(0, torch.ones(1))], [], "control/x"))
        timer.start()
        begun = time.thread_time()
        ours.exchange([], [(1, torch.zeros(1))], "control/x")
        assert time.thread_time() - begun < 0.1
        timer.join()
