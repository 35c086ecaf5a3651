"""Which samples a worker takes at which step: every sample once per epoch, reshuffled every epoch.

    sampler = tutti.EpochSampler(dataset, global_batch=256)
    loader = DataLoader(dataset, batch_sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader: ...

The shuffled samples are cut into `steps` global batches and each of those into one part per worker, so the global
batches do not depend on the number of workers: one worker on the global batch and eight on an eighth of it see the same
samples at the same step. All cuts are as even as can be: any two parts, of any steps and workers, differ by at most one
sample. Where every worker has samples of its own (see partitions), each shuffles and cuts its own instead.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import Sampler

from tutti.data.place import HasRank, find_share
from tutti.errors import UserError

T = TypeVar("T")
_IDENTITY = ("samples", "global_batch", "seed", "drop_last", "steps")  # what the order of an epoch depends on


class EpochSampler(Sampler[list[int]]):
    """The share of one worker, as a batch sampler: `DataLoader(dataset, batch_sampler=EpochSampler(dataset, 256))`.

    `global_batch` is the number of samples of all workers together in a step. There are ceil(samples / global_batch)
    steps, or fewer and larger ones where some worker would be left without a sample. No sample is repeated or left out;
    so batches differ by a sample, within an epoch and between workers, and there is no short one at the end. Set
    `run.samples = len(batch)` for a mean that is right to the last digit. With `drop_last` every global batch has
    exactly `global_batch` samples, and what remains of an epoch is left out, other samples in every epoch.

    Which worker this is: `workers` and `rank`, those of `run`, or those of the process group, the launcher or the
    thread; without any of these it is the only one.

    Epochs count from 0. `set_epoch(n)` says which one comes next; without it an epoch that was drawn to its end is
    followed by the next one. A loop that leaves an epoch early and iterates again gets the same epoch from its
    beginning. With worker processes, which draw ahead, an epoch may be at its end before the loop is: call `set_epoch`,
    or use `counted`.

    `state_dict()` says which epoch it is and how many of its batches are used; after `load_state_dict` the next
    iteration goes on there, on any number of workers. `set_epoch` of the same epoch does not change that. Used is what
    was drawn, unless a loader has worker processes: iterate over `sampler.counted(loader)` then.
    """

    def __init__(
        self,
        samples: int | Sized,
        global_batch: int,
        workers: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        *,
        drop_last: bool = False,
        run: HasRank | None = None,
    ) -> None:
        self.samples = _count(samples)
        self.global_batch, self.seed = _whole("global_batch", global_batch, 1), _whole("seed", seed, 0)
        self.rank, self.workers = find_share("EpochSampler", workers, rank, run, alone=True)
        self.drop_last = bool(drop_last)
        if self.workers > self.samples:
            raise UserError(
                f"{self.workers} workers cannot share {self.samples} samples: use at most {self.samples} workers"
            )
        if self.drop_last and not self.workers <= self.global_batch <= self.samples:
            raise UserError(
                f"with drop_last the global batch must be between {self.workers}, the number of workers, and "
                f"{self.samples}, the number of samples, not {self.global_batch}"
            )
        self._pass = _Pass(0, 0)
        self._counting = False

    @property
    def steps(self) -> int:
        """Steps per epoch, the same on every worker."""
        if self.drop_last:
            return self.samples // self.global_batch
        return min(math.ceil(self.samples / self.global_batch), self.samples // self.workers)

    def epoch(self, number: int) -> list[torch.Tensor]:
        """The indices of this worker's samples, one tensor per step."""
        order = torch.from_numpy(np.random.default_rng((self.seed, number)).permutation(self.samples))
        if self.drop_last:
            order = order[: self.steps * self.global_batch]
        return [batch.tensor_split(self.workers)[self.rank] for batch in order.tensor_split(self.steps)]

    def chances(self, number: int, count: int) -> torch.Tensor:
        """`count` random numbers from 0 to 1 for every sample of the data in this epoch, the same on every worker."""
        return _draw_chances(self.samples, self.seed, number, count)

    # --- a batch sampler ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Steps per epoch, also in one that is gone on with."""
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        self._pass = self._pass.follow(self.steps)
        if self._counting:
            self._pass.used = self._pass.start
        return self._draw(self._pass)

    def _draw(self, this: _Pass) -> Iterator[list[int]]:
        this.begun = True  # not before: torch's loader makes an iterator that it never draws from
        for indices in self.epoch(this.epoch)[this.start :]:
            this.drawn += 1
            yield _Batch(indices.tolist(), this)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration goes through: from its beginning, or where a state that was loaded is."""
        epoch = _whole("the epoch", epoch, 0)
        if self._pass.loaded and epoch == self._pass.epoch:
            self._pass.chosen = True
        else:
            self._pass = _Pass(epoch, 0)

    # --- its position ------------------------------------------------------------------------------------------------

    def counted(self, loader: Iterable[T]) -> Counted[T]:
        """The loader itself, while the sampler counts the batches that the loop takes."""
        return Counted(self, loader)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Numbers only: the epoch, how many of its batches are used (`batches`, if given), and what they are cut from.

        It is the same on all workers where their loops are.
        """
        used = self._pass.count_used() if batches is None else _whole("batches", batches, 0)
        if used > self.steps:
            raise UserError(f"an epoch has {self.steps} batches, so {used} of them cannot be used")
        return {"epoch": self._pass.epoch, "batches": used, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there with the next iteration; the number of workers may be another one."""
        if not isinstance(state, dict) or not {"epoch", "batches", *_IDENTITY} <= set(state):
            raise UserError("this is no state of EpochSampler.state_dict(): it has no epoch, batches, samples and seed")
        for key, mine in self._identity().items():
            if state[key] != mine:
                raise UserError(
                    f"this state is of an EpochSampler with {key}={state[key]}, and this one has {key}={mine}: its "
                    "batches would be other ones"
                )
        epoch, batches = _whole("the epoch", state["epoch"], 0), _whole("batches", state["batches"], 0)
        if batches > self.steps:
            raise UserError(f"an epoch has {self.steps} batches, so {batches} of them cannot be used")
        self._pass = _Pass(epoch, batches, loaded=True)

    def _identity(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in _IDENTITY}


class Counted(Generic[T]):
    """A loader whose batches are counted as they are taken."""

    def __init__(self, sampler: EpochSampler, loader: Iterable[T]) -> None:
        self._sampler, self._loader = sampler, loader

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[T]:
        sampler, before = self._sampler, self._sampler._pass
        batches = self._begin()
        this = sampler._pass
        for taken, batch in enumerate(batches, start=1):
            this = sampler._pass if this is before else this
            if this is before:
                raise UserError(
                    "counted() got a loader that does not draw from this sampler; make it with "
                    "DataLoader(dataset, batch_sampler=sampler)"
                )
            this.used = this.start + taken
            yield batch

    def _begin(self) -> Iterator[T]:
        """An iterator of the loader, which begins a pass, or its first batch does.

        torch's loader draws a seed from the random state when it is iterated over. The state of a checkpoint from
        mid-epoch has that draw behind it, so going on there takes it back: with it every later number would be another.
        """
        sampler = self._sampler
        goes_on = sampler._pass.follow(sampler.steps).start > 0
        random = torch.get_rng_state()
        sampler._counting = True
        try:
            return iter(self._loader)
        finally:
            sampler._counting = False
            if goes_on:
                torch.set_rng_state(random)


class _Pass:
    """One iteration: an epoch, or the rest of one."""

    def __init__(self, epoch: int, start: int, loaded: bool = False, chosen: bool = False) -> None:
        self.epoch, self.start, self.loaded = epoch, start, loaded
        self.chosen = chosen  # by set_epoch, after loading
        self.begun = False
        self.drawn = start  # batches of the epoch that the sampler has given out
        self.used: int | None = None  # those that the loop has taken, where that is counted
        self.sent = False  # whether a batch went to another process, which the loop is not waiting for

    def follow(self, steps: int) -> _Pass:
        """The one that comes next."""
        if self.begun:
            over = (self.drawn if self.used is None else self.used) >= steps
            return _Pass(self.epoch + over, 0)
        if self.start >= steps and not self.chosen:
            return _Pass(self.epoch + 1, 0)
        return _Pass(self.epoch, self.start, self.loaded, self.chosen)

    def count_used(self) -> int:
        if self.used is not None:
            return self.used
        if self.sent:
            raise UserError(
                "EpochSampler has given batches to the loader's worker processes and does not know how many the loop "
                "has used: iterate over sampler.counted(loader), or say it with state_dict(batches=n)"
            )
        return self.drawn


class _Batch(list[int]):
    """The indices of a batch; notes when they are pickled for another process, where they are an ordinary list."""

    __slots__ = ("_of",)

    def __init__(self, indices: list[int], of: _Pass) -> None:
        super().__init__(indices)
        self._of = of

    def __reduce__(self) -> tuple[type[list[int]], tuple[list[int]]]:
        self._of.sent = True
        return list, (list(self),)


def _count(samples: int | Sized) -> int:
    if not isinstance(samples, Sized):
        if hasattr(samples, "__index__"):
            return _whole("the number of samples", samples, 1)
    else:
        with suppress(TypeError, NotImplementedError):  # a data set whose length is not known
            return _whole("the number of samples", len(samples), 1)
    raise UserError("EpochSampler takes the number of samples, or a data set that has a length")


def _whole(what: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{what} must be a whole number, not {value!r:.80}") from None
    if number < least:
        raise UserError(f"{what} must be {least} or more, not {number}")
    return number


class ShareSampler:
    """One worker's own share. All workers have as many steps: ceil(samples / global_batch), or fewer and larger ones
    where some worker would be left without a sample. A worker's batches differ by at most one sample, and the larger
    ones of different workers fall on different steps."""

    def __init__(self, shares: Sequence[torch.Tensor], global_batch: int, rank: int, seed: int) -> None:
        sizes = [len(share) for share in shares]
        self.share, self.samples, self.workers = shares[rank], sum(sizes), len(sizes)
        self.rank, self.seed = rank, seed
        self.steps = min(math.ceil(self.samples / global_batch), min(sizes))

    def epoch(self, number: int) -> list[torch.Tensor]:
        """The indices of this worker's samples, one tensor per step."""
        order = np.random.default_rng((self.seed, number, 2, self.rank)).permutation(len(self.share))
        late = self.rank * self.steps // self.workers
        ends = (np.arange(1, self.steps) * len(order) + late) // self.steps
        return [self.share[torch.from_numpy(part)] for part in np.split(order, ends)]

    def chances(self, number: int, count: int) -> torch.Tensor:
        """`count` random numbers from 0 to 1 for every sample of the data in this epoch, the same on every worker."""
        return _draw_chances(self.samples, self.seed, number, count)


def _draw_chances(samples: int, seed: int, number: int, count: int) -> torch.Tensor:
    drawn = np.random.default_rng((seed, number, 1)).random((samples, count), dtype=np.float32)
    return torch.from_numpy(drawn)
