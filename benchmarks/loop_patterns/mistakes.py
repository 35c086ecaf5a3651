"""What cannot work: one sentence each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import tutti
from loop_patterns.registry import pattern
from loop_patterns.session import METHODS, PATIENCE, TUTTI, Result, Session, learn, net, sgd, weights


@pattern(
    "an optimizer of another model",
    must="refuse",
    ddp="DDP does not know the optimizer: the model it was given never changes.",
)
def other_models_optimizer(s: Session) -> Result:
    model = net()
    optimizer = sgd(net())
    learn(s, s.distribute(model, optimizer), optimizer, range(3))
    return weights(model)


@pattern("a DDP-wrapped model", must="refuse", methods=TUTTI)
def ddp_wrapped(s: Session) -> Result:
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(3))
    return weights(model)


@pattern("an FSDP2 model (`fully_shard`)", must="refuse")
def fsdp(s: Session) -> Result:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (s.size,)))
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(3))
    return weights(net())


@pattern("a model on the meta device", must="refuse")
def meta(s: Session) -> Result:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    s.distribute(model, sgd(model))
    return {}


@pattern("a model with lazy, uninitialised parameters", must="refuse")
def lazy(s: Session) -> Result:
    model = nn.LazyLinear(2)
    s.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return {}


@pattern("a model with no trainable parameters", must="refuse")
def nothing_trainable(s: Session) -> Result:
    model = net().requires_grad_(False)
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    t.step()
    return weights(model)


@pattern("a model with no parameters at all", must="refuse")
def no_parameters(s: Session) -> Result:
    s.distribute(nn.Tanh(), sgd(net()))
    return {}


@pattern("another model on one worker", must="refuse")
def other_model(s: Session) -> Result:
    model = net() if s.rank == 0 else nn.Sequential(nn.Linear(3, 2)).double()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(2))
    return weights(model)


@pattern("another algorithm on one worker", must="refuse", methods=TUTTI)
def other_algorithm(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    other = "ddp" if s.method != "ddp" else "allreduce-model"
    spec = s.method if s.rank == 0 else other
    run = tutti.distribute(model, optimizer, spec, timeout=PATIENCE)
    for step in range(2):
        optimizer.zero_grad()
        s.loss(run.model, step).backward()
        run.step()
    return weights(model)


@pattern("the optimizer's groups are cut differently on one worker", must="refuse", methods=TUTTI)
def other_groups(s: Session) -> Result:
    model = net()
    parts = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = sgd(model, momentum=0.0) if s.rank == 0 else torch.optim.SGD(parts, lr=0.1)
    learn(s, s.distribute(model, optimizer), optimizer, range(3))
    return weights(model)


def _plain_call(**changes: Any) -> Any:
    model = net()
    arguments: dict[str, Any] = {"model": model, "optimizer": sgd(model), "algorithm": "ddp", **changes}
    return tutti.distribute(**arguments)


@pattern("swapped arguments: `distribute(optimizer, model)`", must="refuse")
def swapped_arguments(s: Session) -> Result:
    model = net()
    s.distribute(sgd(model), model)  # type: ignore[arg-type]
    return {}


@pattern("`algorithm=None`", must="refuse", methods=("ddp",))
def algorithm_none(_: Session) -> Result:
    _plain_call(algorithm=None)
    return {}


@pattern("a misspelt algorithm", must="refuse", methods=("ddp",))
def misspelt(_: Session) -> Result:
    _plain_call(algorithm="dpp")
    return {}


@pattern("`timeout='60'`", must="refuse", methods=("ddp",))
def timeout_text(_: Session) -> Result:
    _plain_call(timeout="60")
    return {}


@pattern("`run.samples = '8'`", must="refuse", methods=("ddp",))
def samples_text(_: Session) -> Result:
    _plain_call().samples = "8"
    return {}


@pattern("`run.mean(None)`", must="refuse", methods=("ddp",))
def mean_none(_: Session) -> Result:
    _plain_call().mean(None)
    return {}


@pattern("`RANK=x`", must="refuse", methods=("ddp",))
def rank_text(s: Session) -> Result:
    import os

    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
    os.environ["RANK"] = "x"
    try:
        _plain_call()
    finally:
        os.environ["RANK"] = str(s.rank)
    return {}


@pattern("`run.step()` after `close()`", must="refuse", methods=TUTTI)
def step_after_close(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(1))
    t.close()
    t.run.step()
    return {}


@pattern("`run.mean(x)` after `close()`", must="refuse", methods=TUTTI)
def mean_after_close(s: Session) -> Result:
    model = net()
    t = s.distribute(model, sgd(model))
    t.close()
    t.mean(1.0)
    return {}


@pattern(
    "the loop goes on after `close()` with `optimizer.step()`: the model is the user's again", methods=TUTTI, blind=True
)
def alone_after_close(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    t.close()
    for step in range(2):
        optimizer.zero_grad()
        s.loss(model, step).backward()
        optimizer.step()
    return weights(model)


@pattern("a list of parameters in place of the optimizer", must="refuse", methods=METHODS)
def list_of_parameters(s: Session) -> Result:
    model = net()
    s.distribute(model, list(model.parameters()))
    if s.method == "torch-ddp":
        return {}
    return weights(model)
