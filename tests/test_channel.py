"""Frames: whole, in order, whatever the socket takes at once; and the end of the other side."""

from __future__ import annotations

import os
import select
import socket
import threading

import pytest

from tutti.channel import ALIVE, EVENT, JOB, RESULT, LauncherEnd, WorkerEnd


def pair() -> tuple[LauncherEnd, WorkerEnd, socket.socket]:
    ours, theirs = socket.socketpair()
    return LauncherEnd(ours), WorkerEnd(theirs), theirs


def test_frames_arrive_in_order() -> None:
    launcher, worker, theirs = pair()
    with theirs:
        worker.send(ALIVE)
        worker.send(EVENT, b"{}")
        assert list(launcher.receive()) == [(ALIVE, b""), (EVENT, b"{}")]
        assert list(launcher.receive()) == []
        launcher.send(JOB, b"")
        assert worker.receive() == (JOB, b"")
    launcher.close()


def test_a_part_of_a_frame_waits_for_the_rest() -> None:
    launcher, _, theirs = pair()
    whole = b"E" + (5).to_bytes(8, "little") + b"hello"
    with theirs:
        for byte in whole[:-1]:
            theirs.sendall(bytes([byte]))
            assert list(launcher.receive()) == []
        theirs.sendall(whole[-1:])
        assert list(launcher.receive()) == [(EVENT, b"hello")]
    launcher.close()


def test_a_long_body_goes_both_ways_and_the_launcher_never_blocks() -> None:
    launcher, worker, theirs = pair()
    long = os.urandom(3_000_000)
    with theirs:
        launcher.send(JOB, long)
        assert launcher.events & select.POLLOUT, "the worker has not read yet"
        thread = threading.Thread(target=lambda: worker.send(RESULT, worker.receive()[1]))
        thread.start()
        found: list[tuple[bytes, bytes]] = []
        while not found:
            launcher.flush()
            found += launcher.receive()
        thread.join()
        assert found == [(RESULT, long)]
        assert not launcher.events & select.POLLOUT
    launcher.close()


def test_last_words_are_heard() -> None:
    launcher, worker, theirs = pair()
    worker.send(EVENT, b"last")
    theirs.close()
    assert list(launcher.receive()) == [(EVENT, b"last")]
    assert launcher.closed
    launcher.send(JOB, b"to nobody")
    launcher.close()


def test_a_worker_notices_that_the_launcher_is_gone() -> None:
    launcher, worker, theirs = pair()
    with theirs:
        assert not worker.wait_for_hang_up(0.01)
        launcher.close()
        assert worker.wait_for_hang_up(None)
        with pytest.raises(EOFError):
            worker.receive()
