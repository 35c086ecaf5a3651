"""Which of the workers this one is, for samplers: what was given, the run, or where this worker was launched."""

from __future__ import annotations

from typing import Protocol

from torch import distributed

from tutti.comm.rendezvous import find_place, here
from tutti.errors import UserError


class HasRank(Protocol):
    """What a sampler needs to know of a run."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...


def find_share(
    sampler: str, workers: int | None, rank: int | None, run: HasRank | None, *, alone: bool, name: str = "workers"
) -> tuple[int, int]:
    """(rank, workers). Where nothing says so a worker is the only one, if the sampler may be used `alone`."""
    if run is not None:
        rank, workers = _ask(run, sampler, workers is not None or rank is not None, name)
    elif workers is None or rank is None:
        known = _find_launched()
        if known is None and alone and workers is None and rank is None:
            known = (0, 1)
        if known is None:
            raise UserError(
                f"{sampler} needs {name}= and rank=: torch.distributed is not initialised, and no launcher has set "
                "RANK and WORLD_SIZE"
            )
        rank, workers = known[0] if rank is None else rank, known[1] if workers is None else workers
    if workers < 1:
        raise UserError(f"{name} must be at least 1, not {workers}")
    if not 0 <= rank < workers:
        raise UserError(f"there is no rank {rank} among {workers} workers: ranks go from 0 to {workers - 1}")
    return rank, workers


def _ask(run: HasRank, sampler: str, given: bool, name: str) -> tuple[int, int]:
    if given:
        raise UserError(f"{sampler} takes run=, or {name}= and rank=, not both")
    if not (hasattr(run, "rank") and hasattr(run, "size")):
        raise UserError(f"run= of {sampler} is what tutti.distribute() returns, not of type {type(run).__name__}")
    return run.rank, run.size


def _find_launched() -> tuple[int, int] | None:
    comm = getattr(here, "comm", None)
    if comm is not None:
        return comm.rank, comm.size
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    place = find_place()
    return None if place is None else (place.rank, place.size)
