"""torch.distributed's process groups (gloo, nccl, mpi) behind the same contract.

Its operations are the backend's own; messages go point to point through the same group, so that every route also runs
here (`--wire torch`). A fork is a group of its own, so that nothing of the user's interleaves with the lane. Deadlines
are the backend's: a `wait` with a deadline of ours is not offered by gloo without closing the pair. NCCL has no tags
and takes grouped messages only; with two or more workers it is untested (no machine of ours has two GPUs), and so is
MPI, which torch has only where it was built with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import Comm, Lost, Message, PeerLost, Pending

R = TypeVar("R")


class TorchComm(Comm):
    """One worker's end of a process group."""

    wire = "torch"

    def __init__(
        self, group: dist.ProcessGroup, backend: str, timeout: float, clock: Clock, owner: bool = False
    ) -> None:
        self._group, self.timeout, self.clock, self._owner = group, timeout, clock, owner
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.backend = backend
        self._forked = False

    @classmethod
    def join(
        cls,
        rank: int,
        size: int,
        store: dist.Store,
        timeout: float,
        clock: Clock | None = None,
        backend: str = "gloo",
    ) -> TorchComm:
        """A new group of all workers, in the process group that is there or in one made now."""
        limit = timedelta(seconds=timeout)
        owner = not dist.is_initialized()
        if owner:
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        group = dist.new_group(backend=backend, timeout=limit)
        return cls(group, backend, timeout, clock or Clock(), owner)

    @property
    def group(self) -> dist.ProcessGroup:
        return self._group

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        return _Work(self, self._call(lambda: dist.isend(tensor, peer, group=self._group, tag=_code(tag))), tensor)

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        return _Work(self, self._call(lambda: dist.irecv(tensor, peer, group=self._group, tag=_code(tag))), tensor)

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        code = _code(tag)
        operations = [dist.P2POp(dist.irecv, t, p, self._group, code) for p, t in recvs]
        operations += [dist.P2POp(dist.isend, t, p, self._group, code) for p, t in sends]
        if operations:
            for work in self._call(lambda: dist.batch_isend_irecv(operations)):
                self._call(work.wait)

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        if set(sources) != set(self.others()):
            raise ValueError("torch.distributed receives from any worker, or from a given one: name all others")
        return self._call(lambda: dist.recv(tensor, None, group=self._group, tag=_code(tag)))

    def fork(self, name: str) -> TorchComm:
        group = dist.new_group(backend=self.backend, timeout=timedelta(seconds=self.timeout))
        fork = TorchComm(group, self.backend, self.timeout, self.clock)
        fork._forked = True
        return fork

    def close(self) -> None:
        if not dist.is_initialized():
            return
        if self._owner:
            self._owner = False
            dist.destroy_process_group()
        elif self._forked:
            self._forked = False
            dist.destroy_process_group(self._group)

    # --- the operations, the backend's own ---------------------------------------------------------------------------

    def barrier(self, tag: str = "control/barrier") -> None:
        self._call(lambda: dist.barrier(group=self._group))

    def broadcast(self, tensor: Tensor, root: int = 0, tag: str = "control/broadcast") -> None:
        self._call(lambda: dist.broadcast(tensor, root, group=self._group))

    def gather(self, tensor: Tensor, out: Tensor | None, root: int = 0, tag: str = "control/gather") -> None:
        rows = list(out) if out is not None and self.rank == root else None
        self._call(lambda: dist.gather(tensor, rows, root, group=self._group))

    def all_gather(self, tensor: Tensor, out: Tensor, tag: str = "control/all-gather") -> None:
        self._call(lambda: dist.all_gather(list(out), tensor, group=self._group))

    def scatter(self, tensor: Tensor, rows: Tensor | None, root: int = 0, tag: str = "control/scatter") -> None:
        parts = list(rows) if rows is not None and self.rank == root else None
        self._call(lambda: dist.scatter(tensor, parts, root, group=self._group))

    def reduce(self, tensor: Tensor, root: int = 0, tag: str = "control/reduce") -> None:
        # gloo leaves partial sums in the tensors of the others, which the contract does not promise to keep
        self._call(lambda: dist.reduce(tensor, root, group=self._group))

    def reduce_scatter(self, tensor: Tensor, out: Tensor, tag: str = "control/reduce-scatter") -> None:
        self._call(lambda: dist.reduce_scatter(out, list(tensor), group=self._group))

    def all_to_all(self, tensor: Tensor, out: Tensor, tag: str = "control/all-to-all") -> None:
        self._call(lambda: dist.all_to_all_single(out, tensor, group=self._group))

    def all_reduce(self, tensor: Tensor, tag: str = "control/all-reduce") -> None:
        self._call(lambda: dist.all_reduce(tensor, group=self._group))

    def _call(self, operation: Callable[[], R]) -> R:
        try:
            return operation()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise PeerLost(f"worker {self.rank} lost its {self.backend} group: {reason}") from None


class _Work(Pending):
    def __init__(self, comm: TorchComm, work: dist.Work | None, tensor: Tensor) -> None:
        self._comm, self._work, self._tensor = comm, work, tensor

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        if deadline is not None:
            raise ValueError("this wire has the backend's deadlines only")
        if self._work is not None:
            self._comm._call(self._work.wait)
        return self._tensor


def _code(tag: str) -> int:
    return zlib.crc32(tag.encode()) & 0x7FFFFFFF


def default_backend(device: torch.device) -> str:
    """MPI where the user's process group is MPI's; else gloo, and for CUDA tensors nccl with gloo beside it."""
    if dist.is_initialized() and dist.get_backend() == "mpi":
        return "mpi"
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
