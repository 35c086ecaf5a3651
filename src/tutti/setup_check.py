"""Before anything is set up: every worker must have been given the same, and gets the same weights to start from."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from torch import Tensor, nn

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.optimizers import Optimizers
from tutti.presets import PRESETS
from tutti.spec import parse

_TAG = "control/setup"
Shape = tuple[str, list[int], str, bool]  # of a parameter: name, shape, type, whether it is trained


def require_same(comm: Comm, settings: dict[str, str], tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Refuse on all workers what is not the same on all; `settings` say what a worker runs, in its own words."""
    mine = [settings, [_look(name, tensor) for name, tensor in tensors]]
    text = json.dumps(mine).encode()
    digests = comm.gather_bytes(b"%d %d" % (zlib.crc32(text), len(text)), _TAG)
    if len(set(digests)) == 1:
        return
    rows = [json.loads(row) for row in comm.gather_bytes(text, _TAG)]
    for rank, (given, shapes) in enumerate(rows):
        for what, value in given.items():
            if value != rows[0][0].get(what):
                first = rows[0][0].get(what)
                here, there = (f"'{_preset(text)}'" if what == "runs" else text for text in (value, first))
                raise UserError(f"worker {rank} {what} {here} and worker 0 {what} {there}: all must do the same")
        if shapes != rows[0][1]:
            raise UserError(_name_difference(rank, shapes, rows[0][1]))


def collect(model: nn.Module, optimizers: Optimizers) -> list[tuple[str, Tensor]]:
    """All that has to be equal on every worker: the model's, and what only the optimizers know."""
    named: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    known = {id(tensor) for _, tensor in named}
    return named + [("", p) for p in optimizers.parameters if id(p) not in known]


def make_equal(comm: Comm, tensors: Sequence[tuple[str, Tensor]], settings: dict[str, str] | None = None) -> None:
    """Worker 0's tensors, everywhere; what is not the same is refused before anything hangs."""
    require_same(comm, settings or {}, tensors)
    for _, tensor in tensors:
        plain = tensor.detach()
        sent = plain.contiguous()
        comm.broadcast(sent, tag="weights/start")
        if sent is not plain:
            plain.copy_(sent)


def describe(algorithm: Algorithm, optimizers: Optimizers, guard: int) -> dict[str, str]:
    """What a worker was given: verbs, and what they are about. Settings of the optimizer have to be the same where all
    workers make the same step."""
    given = {
        "runs": str(algorithm),
        "steps with": " and ".join(type(each).__name__ for each in optimizers.every),
        "has": f"{len(optimizers.groups)} parameter groups",
        "compares": f"every {guard} steps" if guard else "nothing (guard=False)",
    }
    settings = optimizers.plain_settings() if algorithm.same_steps else []
    for index, group in enumerate(settings):
        where = f" in parameter group {index}" if len(settings) > 1 else ""
        given.update({f"has {name}{where} =": str(value) for name, value in group.items()})
    return given


def _preset(spec: str) -> str:
    """The name by which people know it, where it has one."""
    return next((name for name, text in PRESETS.items() if str(parse(text, Algorithm)) == spec), spec)


def _look(name: str, tensor: Tensor) -> Shape:
    return name, list(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.requires_grad


def _name_difference(rank: int, theirs: list[Shape], ours: list[Shape]) -> str:
    """The first tensor of the model that is another one on this worker than on worker 0."""
    pairs = zip(theirs, ours, strict=False)
    for (name, shape, dtype, trained), (first, first_shape, first_dtype, first_trained) in pairs:
        label = f"'{name}'" if name else "a parameter of the optimizer"
        if name != first:
            return f"the models differ: worker {rank} has '{name}' where worker 0 has '{first}'"
        if shape != first_shape:
            return f"{label} is {tuple(shape)} on worker {rank} and {tuple(first_shape)} on worker 0"
        if dtype != first_dtype:
            return f"{label} is {dtype} on worker {rank} and {first_dtype} on worker 0"
        if trained != first_trained:
            return f"{label} has requires_grad={trained} on worker {rank} and {first_trained} on worker 0"
    more, fewer, longer = (rank, 0, theirs) if len(theirs) > len(ours) else (0, rank, ours)
    name = longer[min(len(theirs), len(ours))][0]
    return f"worker {more} has '{name}' in its model, and worker {fewer} has not"
