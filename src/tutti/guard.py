"""Every so many steps workers compare what must be the same on all of them.

    weights           where the algorithm says that they are equal on all workers (`equal`)
    optimizer state   where it says so (`same_steps`)
    operations        always: a digest of the sequence of collective operations so far

What is compared first is one checksum for each, in one small message to every worker, as control traffic. Only where
they differ are checksums of every tensor sent, to name the first that differs. The first check is after the first step.

Where the algorithm lets workers differ there is nothing to compare but the operations, and workers may be steps apart:
the watch sends them in its own time (watch.py) and no worker waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tutti.algorithms.base import Algorithm
from tutti.checksum import checksum, combine
from tutti.comm.base import Comm
from tutti.errors import Desynchronised, Diverged, UserError
from tutti.operations import Operations, Report, describe_difference
from tutti.replica import Replica
from tutti.watch import Watch

EVERY = 100  # steps, by default
_TAG = "control/guard"


def read_interval(guard: object) -> int:
    """The steps between two checks; 0 for none."""
    if isinstance(guard, bool):
        return EVERY if guard else 0
    if not isinstance(guard, int) or guard < 1:
        raise UserError(f"guard must be True, False or a number of steps from 1 on, not {guard!r}")
    return guard


class Guard:
    """The checks of one run; every worker calls `after_step` after every step."""

    def __init__(
        self,
        every: int,
        algorithm: Algorithm,
        replica: Replica,
        comm: Comm,
        operations: Operations,
        watch: Watch | None = None,
    ) -> None:
        self._every = every if comm.size > 1 else 0
        self._algorithm, self._replica, self._comm, self._operations = algorithm, replica, comm, operations
        self._watch = watch
        self._taken = 0  # steps of this run
        self._good = "the start"  # when everything was last found equal

    def after_step(self, complete: bool = True) -> None:
        """Compare if it is time; not while a worker that has ended takes part with old weights (not `complete`)."""
        self._taken += 1
        if self._every and complete and (self._taken == 1 or self._taken % self._every == 0):
            self.check()

    def check_all(self) -> None:
        """Compare before something is kept: a checkpoint of workers that differ is worse than none."""
        if self._every:
            self.check()

    @torch.no_grad()
    def check(self) -> None:
        """Compare now; collective."""
        if not self._algorithm.equal and self._watch is not None:
            self._watch.announce()
            return
        self._algorithm.drain()
        last = self._operations.last
        mine = torch.tensor([self._weights(), self._state(), last.number, last.digest])
        rows = mine.new_empty(self._comm.size, len(mine))
        self._comm.all_gather(mine, rows, _TAG)
        if not bool((rows == rows[0]).all()):
            self._explain(rows)
        self._good = f"step {self._replica.steps}"

    # --- what is compared --------------------------------------------------------------------------------------------

    def _weights(self) -> int:
        return combine([checksum(w) for w in _flat_weights(self._replica)]) if self._algorithm.equal else 0

    def _state(self) -> int:
        tensors = _state_tensors(self._replica) if self._algorithm.same_steps else ()
        return combine([checksum(tensor) for _, tensor in tensors])

    # --- what differs ------------------------------------------------------------------------------------------------

    def _explain(self, rows: Tensor) -> None:
        if not bool((rows[:, 2:] == rows[0, 2:]).all()):
            raise Desynchronised(self._name_operations())
        if not bool((rows[:, 0] == rows[0, 0]).all()):
            raise Diverged(self._name_tensor("weights differ", _named_weights(self._replica)))
        raise Diverged(self._name_tensor("optimizer state differs", _state_tensors(self._replica)))

    def _name_operations(self) -> str:
        own = self._operations.report(self._comm.rank)
        reports = [Report.from_bytes(row) for row in self._comm.gather_bytes(own.to_bytes(), _TAG)]
        found = (describe_difference(reports[0], report) for report in reports[1:])
        numbers = [report.entries[-1].number for report in reports]
        return next(filter(None, found), f"workers have called different numbers of operations: {numbers}")

    def _name_tensor(self, what: str, tensors: Iterator[tuple[str, Tensor]]) -> str:
        """Which tensor is the first that is not the same, and where."""
        mine = [(name, combine([checksum(tensor)])) for name, tensor in tensors]
        rows = [json.loads(row) for row in self._comm.gather_bytes(json.dumps(mine).encode(), _TAG)]
        other, name = next(
            (rank, here[0] if here else there[0])
            for place in range(max(map(len, rows)))
            for rank, (here, there) in enumerate((_at(rows[0], place), _at(row, place)) for row in rows)
            if here != there
        )
        return f"{what} between workers 0 and {other} since {self._good}: {name}"


def _at(row: list[list[object]], place: int) -> list[object]:
    return row[place] if place < len(row) else []


# --- what a replica holds --------------------------------------------------------------------------------------------


def _flat_weights(replica: Replica) -> Iterator[Tensor]:
    """All weights, as few tensors: whole buckets where the parameters still lie in them, and all others."""
    seen = set()
    for bucket in replica.buckets:
        begin, end = bucket.weights.data_ptr(), bucket.weights.data_ptr() + bucket.weights.nbytes
        if all(begin <= p.data_ptr() <= end for p in bucket.parameters):
            seen.update(bucket.parameters)
            yield bucket.weights
    for parameter in _parameters(replica).values():
        if parameter not in seen:
            yield parameter


def _named_weights(replica: Replica) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in _parameters(replica).items():
        yield f"'{name}'", parameter


def _state_tensors(replica: Replica) -> Iterator[tuple[str, Tensor]]:
    """What the optimizer remembers of each parameter: tensors and numbers."""
    for name, parameter in _parameters(replica).items():
        for key, value in sorted(replica.optimizers.state(parameter).items(), key=lambda item: str(item[0])):
            if isinstance(value, float | int):
                value = torch.tensor(value, dtype=torch.float64)
            if isinstance(value, Tensor) and value.layout == torch.strided:
                yield f"'{key}' of '{name}'", value


def _parameters(replica: Replica) -> dict[str, nn.Parameter]:
    """By name: the model's, and those that only the optimizer knows."""
    named = dict(replica.model.named_parameters())
    known = {id(parameter) for parameter in named.values()}
    extra = [p for p in replica.optimizers.parameters if id(p) not in known]
    return {**named, **{f"extra.{i}": p for i, p in enumerate(extra)}}
