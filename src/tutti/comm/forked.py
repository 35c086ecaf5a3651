"""What a forked child of a worker (a DataLoader's worker, say) must not do: it is no worker and shares the sockets.

The child closes its copies of the sockets, so that its parent's death is still noticed at once, and every call on its
copy of a comm raises. It says no goodbye in its parent's name, and frees nothing of its parent's.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Protocol
from weakref import WeakSet

from tutti.errors import RunFailed


class Forkable(Protocol):
    """A comm, or a lane."""

    @property
    def rank(self) -> int: ...

    def abandon(self, error: BaseException) -> None:
        """This is a child's copy: let go of the connections without a word, and raise this from now on."""


def leave_to_parent(comm: Forkable) -> None:
    """Children that are forked from now on let go of this comm."""
    _comms.add(comm)


def outlive_forks(store: Any) -> None:
    """A store is never freed in a child: one that hosts would wait for its thread, which is not there."""
    _stores.add(store)


def _abandon_all() -> None:
    for comm in list(_comms):
        comm.abandon(
            RunFailed(
                f"process {os.getpid()} was forked from worker {comm.rank} and is no worker itself: only "
                "the worker may use its run"
            )
        )
    for store in list(_stores):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))


_comms: WeakSet[Forkable] = WeakSet()
_stores: WeakSet[Any] = WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
