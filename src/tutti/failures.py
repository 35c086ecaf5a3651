"""A worker's error on its way to whoever started the worker, and what is told of it."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

from tutti.comm.base import PeerLost
from tutti.errors import RunFailed, UserError


@dataclass(frozen=True)
class Failure:
    """Plain data, since it comes out of another process."""

    rank: int
    kind: str
    message: str
    trace: str
    time: float
    by_user: bool
    of_peer: bool
    accused: int | None = None  # the peer that was lost

    @classmethod
    def of(cls, rank: int, error: BaseException, time: float) -> Failure:
        message = f"{error.filename}: {error.strerror}" if isinstance(error, PermissionError) else str(error)
        trace = "".join(traceback.format_exception(error))
        user, peer = isinstance(error, UserError | PermissionError), isinstance(error, PeerLost)
        accused = re.match(r"worker (\d+)", message) if peer else None
        return cls(rank, type(error).__name__, message, trace, time, user, peer, int(accused[1]) if accused else None)

    def error(self) -> UserError | RunFailed:
        """What the user is told; a stack only where the program is to blame."""
        if self.by_user:
            return UserError(self.message)
        if self.of_peer:
            return RunFailed(self.message)
        error = RunFailed(f"worker {self.rank} raised {self.kind}: {self.message}")
        error.add_note(self.trace)
        return error
