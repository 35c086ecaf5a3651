"""A host that is off, or whose link is down, while its kernel says nothing any more: on hosts of our own making."""

from __future__ import annotations

from hosts_here import needs_hosts, run_inside

PROGRAM = """
import threading, time
import torch
import torch.distributed as dist
from tutti.comm import link, tcp
from tutti.comm.base import PeerLost
from tutti.comm.handshake import Access
from tutti.hosts.links import Wiring

link.HOST_SECONDS, tcp._LOOK_SECONDS = 6, 0.5
BIG = torch.zeros(16 * 2**20)
store, result = dist.HashStore(), {}

def on_hosts(wiring, work):
    "Each worker is a thread in a namespace of its own."
    def run(rank):
        try:
            wiring.hosts[rank].run(lambda: work(rank))
        except BaseException as error:
            result[f"error {rank}"] = repr(error)
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)

def meet(rank, name):
    return tcp.TcpComm(rank, 2, store, Access(wiring.address_of(rank), b"secret", timeout=100), mesh=name)
"""


@needs_hosts
def test_a_link_that_is_down_ends_both_kinds_of_wait() -> None:
    """One waits for a message, the other has sent one; long before the deadline."""
    found = run_inside(
        PROGRAM
        + """
ready = threading.Barrier(2)
def work(rank):
    comm = meet(rank, "main")
    comm.barrier()
    ready.wait()
    if rank == 0:
        wiring.hosts[1].ip("link set eth0 down")
        ready.wait()
    else:
        ready.wait()
    begun = time.monotonic()
    try:
        (comm.send(1, BIG, "gradients/3") if rank == 0 else comm.recv(0, BIG, "gradients/3")).wait()
    except PeerLost as error:
        result[rank] = str(error)
    result[f"seconds {rank}"] = time.monotonic() - begun
with Wiring([1e9, 1e9]) as wiring:
    on_hosts(wiring, work)
"""
    )
    how = "its host has not answered worker {} for about"
    assert found["0"].startswith(f"worker 1 died: {how.format(0)}"), found
    assert "waited to send gradients (bucket 3) to it" in found["0"]
    assert found["1"].startswith(f"worker 0 died: {how.format(1)}"), found
    assert "waited for its gradients (bucket 3)" in found["1"]
    assert max(found["seconds 0"], found["seconds 1"]) < 40


@needs_hosts
def test_a_worker_that_computes_for_long_is_not_taken_for_dead() -> None:
    """It has no room for what is sent to it, and reads nothing, for longer than a dead host is waited for."""
    found = run_inside(
        PROGRAM
        + """
def work(rank):
    comm = meet(rank, "main")
    comm.barrier()
    if rank == 0:
        comm.send(1, BIG, "gradients/3").wait()
    else:
        time.sleep(15)
        comm.recv(0, BIG, "gradients/3").wait()
    comm.barrier()
    result[rank] = "done"
with Wiring([1e9, 1e9]) as wiring:
    on_hosts(wiring, work)
"""
    )
    assert found == {"0": "done", "1": "done"}
