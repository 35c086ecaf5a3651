"""The store in the launcher: what a c10d store promises, for torch's process groups too."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch.distributed as dist

from tutti.channel import ANSWER, LauncherEnd, WorkerEnd
from tutti.launcher_store import LauncherStore, Shelf


@contextmanager
def stores(count: int) -> Iterator[list[LauncherStore]]:
    """As many workers' stores, and one launcher on a thread."""
    pairs = [socket.socketpair() for _ in range(count)]
    launchers, shelf, over = [LauncherEnd(ours) for ours, _ in pairs], Shelf(), threading.Event()

    def serve() -> None:
        while not over.is_set():
            answers = shelf.answer(time.monotonic())
            for worker, end in enumerate(launchers):
                for _, question in end.receive():
                    answers += shelf.ask(worker, question, time.monotonic())
            for worker, answer in answers:
                launchers[worker].send(ANSWER, answer)
            time.sleep(0.001)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield [LauncherStore(WorkerEnd(theirs)) for _, theirs in pairs]
    finally:
        over.set()
        thread.join()
        for ours, theirs in pairs:
            ours.close()
            theirs.close()


def test_what_one_sets_another_gets() -> None:
    with stores(2) as (one, other):
        one.set("key", bytes(range(256)))
        assert other.get("key") == bytes(range(256))
        one.set("text", "grüß")
        assert other.get("text") == "grüß".encode()


def test_counters_comparisons_and_deletions() -> None:
    with stores(2) as (one, other):
        assert (one.add("count", 2), other.add("count", 3)) == (2, 5)
        assert other.get("count") == b"5"
        assert one.compare_set("key", "", "first") == b"first"
        assert other.compare_set("key", "", "second") == b"first"
        assert other.compare_set("key", "first", "second") == b"second"
        assert one.num_keys() == 2
        assert (one.delete_key("key"), one.delete_key("key")) == (True, False)
        assert (one.check(["count"]), one.check(["count", "key"])) == (True, False)


def test_a_wait_ends_when_the_last_key_comes() -> None:
    with stores(2) as (one, other):
        waiter = threading.Thread(target=lambda: one.wait(["a", "b"], timedelta(seconds=20)))
        waiter.start()
        other.set("a", "1")
        waiter.join(0.05)
        assert waiter.is_alive()
        other.set("b", "2")
        waiter.join(20)
        assert not waiter.is_alive()


def test_while_one_thread_waits_another_may_set() -> None:
    with stores(1) as (store,):
        waiter = threading.Thread(target=lambda: store.wait(["key"], timedelta(seconds=20)))
        waiter.start()
        store.set("key", "1")
        waiter.join(20)
        assert not waiter.is_alive()


def test_a_wait_in_vain_is_an_error() -> None:
    with stores(1) as (store,):
        with pytest.raises(dist.DistStoreError, match=r"^no worker has set a, b$"):
            store.wait(["a", "b"], timedelta(seconds=0.3))
        store.set_timeout(timedelta(seconds=0.1))
        with pytest.raises(RuntimeError, match=r"no worker has set c"):
            store.get("c")


def test_torch_uses_it_under_a_prefix() -> None:
    with stores(2) as each:
        one, other = (dist.PrefixStore("run", store) for store in each)
        one.set("key", "1")
        other.wait(["key"], timedelta(seconds=5))
        assert (other.get("key"), other.add("count", 1), one.add("count", 1)) == (b"1", 1, 2)
        assert each[0].get("run/key") == b"1"
