"""torch.distributed's process groups (gloo, nccl, mpi) behind the same contract.

Its operations are the backend's own; messages go point to point through the same group, so that every route also runs
here (`--wire torch`). A fork is a group of its own, so that nothing of the user's interleaves with the lane. Deadlines
are the backend's: a `wait` with a deadline of ours is not offered by gloo without closing the pair. NCCL has no tags
and takes grouped messages only; with two or more workers it is untested (no machine of ours has two GPUs), and so is
MPI, which torch has only where it was built with it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tutti.clock import Clock
from tutti.comm.base import Comm, Lost, Message, PeerLost, Pending
from tutti.comm.forked import leave_to_parent
from tutti.comm.handshake import Members
from tutti.comm.waits import LONGER, describe

R = TypeVar("R")


class TorchComm(Comm):
    """One worker's end of a process group."""

    wire = "torch"
    watchable = False

    def __init__(
        self,
        group: dist.ProcessGroup,
        backend: str,
        timeout: float,
        clock: Clock,
        store: dist.Store | None = None,
        members: Members | None = None,
    ) -> None:
        self._group, self.timeout, self.clock = group, timeout, clock
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.backend = backend
        self._store, self._members = store, members
        self._forks: list[TorchComm] = []  # those that are open
        self._forked = 0
        self._parent: TorchComm | None = None
        self._interruption: BaseException | None = None
        self._closed = False
        self._process = os.getpid()
        leave_to_parent(self)

    @classmethod
    def join(
        cls,
        rank: int,
        size: int,
        store: dist.Store,
        timeout: float,
        clock: Clock | None = None,
        backend: str = "gloo",
        members: Members | None = None,
    ) -> TorchComm:
        """A new group of all workers, in the process group that is there or in one made now; or of its members."""
        ours = not dist.is_initialized()
        if ours:
            limit = timedelta(seconds=timeout)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        ours = ours or made_by_us()
        group = _new_group(backend, timeout, store, members)
        comm = cls(group, backend, timeout, clock or Clock(), store, members)
        if ours:
            _users.add(comm)
        return comm

    @property
    def group(self) -> dist.ProcessGroup:
        return self._group

    def send(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        options: dict[str, Any] = {"group_dst": peer, "group": self._group, "tag": _code(tag)}
        return _Work(self, self._call(lambda: dist.isend(tensor, **options), tag), tensor, tag)

    def recv(self, peer: int, tensor: Tensor, tag: str) -> Pending:
        options: dict[str, Any] = {"group_src": peer, "group": self._group, "tag": _code(tag)}
        return _Work(self, self._call(lambda: dist.irecv(tensor, **options), tag), tensor, tag)

    def exchange(self, sends: Sequence[Message], recvs: Sequence[Message], tag: str) -> None:
        code = _code(tag)
        operations = [dist.P2POp(dist.irecv, t, None, self._group, code, group_peer=p) for p, t in recvs]
        operations += [dist.P2POp(dist.isend, t, None, self._group, code, group_peer=p) for p, t in sends]
        if operations:
            for work in self._call(lambda: dist.batch_isend_irecv(operations), tag):
                self._call(work.wait, tag)

    def recv_any(self, sources: Sequence[int], tensor: Tensor, tag: str) -> int:
        if set(sources) != set(self.others()):
            raise ValueError("torch.distributed receives from any worker, or from a given one: name all others")
        sender = self._call(lambda: dist.recv(tensor, None, group=self._group, tag=_code(tag)), tag)
        return dist.get_group_rank(self._group, sender)

    def fork(self, name: str) -> TorchComm:
        members = self._members and self._members.of(f"{name}-{self._forked}")
        group = _new_group(self.backend, self.timeout, self._store, members)
        fork = TorchComm(group, self.backend, self.timeout, self.clock, self._store, members)
        self._forked += 1
        self._forks.append(fork)
        fork._parent = self
        return fork

    def interrupt(self, error: BaseException) -> None:
        """The backend's waits end when the backend ends them; what is called from now on raises."""
        if self._interruption is None:
            self._interruption = error

    def abandon(self, error: BaseException) -> None:
        self._interruption = error

    def close(self) -> None:
        """The last comm in a process group that Tutti has made takes it along."""
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        for fork in list(self._forks):
            fork.close()
        if self._parent is not None:
            self._parent._forks.remove(self)
            self._parent = None
        last = _users == {self}
        _users.discard(self)
        if last and dist.is_initialized():
            dist.destroy_process_group()
        elif self.backend != "mpi" and self._group in dist.distributed_c10d._world.pg_map:
            dist.destroy_process_group(self._group)

    # --- the operations, the backend's own ---------------------------------------------------------------------------

    def barrier(self, tag: str = "control/barrier") -> None:
        self._call(lambda: dist.barrier(group=self._group), tag)

    def broadcast(self, tensor: Tensor, root: int = 0, tag: str = "control/broadcast") -> None:
        self._call(lambda: dist.broadcast(tensor, group_src=root, group=self._group), tag)

    def gather(self, tensor: Tensor, out: Tensor | None, root: int = 0, tag: str = "control/gather") -> None:
        rows = list(out) if out is not None and self.rank == root else None
        self._call(lambda: dist.gather(tensor, rows, group=self._group, group_dst=root), tag)

    def all_gather(self, tensor: Tensor, out: Tensor, tag: str = "control/all-gather") -> None:
        self._call(lambda: dist.all_gather(list(out), tensor, group=self._group), tag)

    def scatter(self, tensor: Tensor, rows: Tensor | None, root: int = 0, tag: str = "control/scatter") -> None:
        parts = list(rows) if rows is not None and self.rank == root else None
        self._call(lambda: dist.scatter(tensor, parts, group=self._group, group_src=root), tag)

    def reduce(self, tensor: Tensor, root: int = 0, tag: str = "control/reduce") -> None:
        # gloo leaves partial sums in the tensors of the others, which the contract does not promise to keep
        self._call(lambda: dist.reduce(tensor, group_dst=root, group=self._group), tag)

    def reduce_scatter(self, tensor: Tensor, out: Tensor, tag: str = "control/reduce-scatter") -> None:
        self._call(lambda: dist.reduce_scatter(out, list(tensor), group=self._group), tag)

    def all_to_all(self, tensor: Tensor, out: Tensor, tag: str = "control/all-to-all") -> None:
        self._call(lambda: dist.all_to_all_single(out, tensor, group=self._group), tag)

    def all_reduce(self, tensor: Tensor, tag: str = "control/all-reduce") -> None:
        self._call(lambda: dist.all_reduce(tensor, group=self._group), tag)

    def _call(self, operation: Callable[[], R], tag: str) -> R:
        if self._interruption is not None:
            raise self._interruption.with_traceback(None)
        try:
            return operation()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            longer = f"; {LONGER}" if "imed out" in reason else ""
            raise PeerLost(
                f"worker {self.rank} lost its {self.backend} group while it exchanged {describe(tag)}: {reason}{longer}"
            ) from None


# --- groups ----------------------------------------------------------------------------------------------------------

_users: set[TorchComm] = set()  # those in a process group that Tutti has made


def made_by_us() -> bool:
    """Whether torch's process group is Tutti's own, made for a backend's operations, and not the user's."""
    return bool(_users)


def _new_group(backend: str, timeout: float, store: dist.Store | None, members: Members | None) -> dist.ProcessGroup:
    """A group of all workers, or of these members alone.

    torch's public `new_group` must be called by every worker, or it names the group by how many groups each member is
    in already (`use_local_synchronization`), which members need not agree on. So for a part of the workers this does
    what `new_group` does, in a store of the members' own; the calls are the same in torch 2.11 and 2.13.
    """
    limit = timedelta(seconds=timeout)
    if members is None:
        whole: dist.ProcessGroup = dist.new_group(backend=backend, timeout=limit)
        return whole
    ranks = list(members.ranks)
    inner = dist.distributed_c10d
    group: dist.ProcessGroup
    group, _ = inner._new_process_group_helper(
        len(ranks),
        ranks.index(dist.get_rank()),
        ranks,
        dist.Backend(backend),
        store if store is not None else dist.HashStore(),
        members.name,  # type: ignore[arg-type]
        timeout=limit,
    )
    inner._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group


class _Work(Pending):
    def __init__(self, comm: TorchComm, work: dist.Work | None, tensor: Tensor, tag: str) -> None:
        self._comm, self._work, self._tensor, self._tag = comm, work, tensor, tag

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        if deadline is not None:
            raise ValueError("this wire has the backend's deadlines only")
        if self._work is not None:
            self._comm._call(self._work.wait, self._tag)
        return self._tensor


def _code(tag: str) -> int:
    return zlib.crc32(tag.encode()) & 0x7FFFFFFF


def default_backend(device: torch.device) -> str:
    """MPI where the user's process group is MPI's; else gloo, and for CUDA tensors nccl with gloo beside it."""
    if dist.is_initialized() and dist.get_backend() == "mpi":
        return "mpi"
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
