"""Patterns around data: shares of unequal size, samplers, workers that end earlier, process groups."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import tutti
from loop_patterns.registry import pattern
from loop_patterns.session import METHODS, TUTTI, Result, Session, learn, net, sgd, weights


@pattern("unequal batches, with `run.samples`", ddp="DDP takes the mean of the workers' means, whatever their batches.")
def unequal_batches(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, momentum=0.0)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        count = 2 + 3 * ((s.rank + step) % 2)
        t.samples = count
        t.backward(s.loss(t.model, step, count))
        t.step()
    return weights(model)


_NO_BATCH = "The other workers wait for this one's gradients: DDP needs a backward from everybody."


@pattern("one worker without a batch: `run.samples = 0`, no backward", ddp=_NO_BATCH)
def no_samples(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, momentum=0.0)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        idle = s.rank == 1 and step == 2
        t.samples = 0 if idle else 4
        if not idle:
            t.backward(s.loss(t.model, step))
        t.step()
    return weights(model)


@pattern("one worker skips its backward at a step and says nothing", must="either", ddp=_NO_BATCH)
def skipped_backward(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, momentum=0.0)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        if s.rank != 1 or step != 2:
            t.backward(s.loss(t.model, step))
        t.step()
    return weights(model)


@pattern("one worker skips the whole step (`continue`)", must="refuse", ddp=_NO_BATCH)
def skipped_step(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        if s.rank == 1 and step == 2:
            continue
        t.backward(s.loss(t.model, step))
        t.step()
    return weights(model)


@pattern("workers with different numbers of batches, as they are", must="refuse", ddp=_NO_BATCH)
def ends_early(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(5 if s.rank == 0 else 3))
    return weights(model)


@pattern(
    "the same in `with run.join():`",
    variants=("", "divided by all"),
    ddp="DDP's join divides by all workers, also by those that have ended.",
)
def joined(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, momentum=0.0)
    t = s.distribute(model, optimizer)
    steps = 5 if s.rank == 0 else 3
    if s.oracle:  # those that have ended take part with nothing
        for step in range(5):
            optimizer.zero_grad()
            t.samples = 1 if step < steps else 0
            if step < steps:
                t.backward(s.loss(t.model, step))
            t.step()
        return weights(model)
    with t.join():
        learn(s, t, optimizer, range(steps))
    return weights(model)


@pattern("inference on all workers in the middle, in eval()")
def evaluate(s: Session) -> Result:
    model, losses = net(), []
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        learn(s, t, optimizer, range(step, step + 1))
        model.eval()
        with torch.no_grad():
            losses.append(s.loss(t.model, 99).item())
        model.train()
    return weights(model, losses=losses)


@pattern("evaluation on worker 0 only")
def evaluate_on_one(s: Session) -> Result:
    model, losses = net(), []
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        learn(s, t, optimizer, range(step, step + 1))
        if s.rank == 0:
            with torch.no_grad():
                losses.append(s.loss(t.model, 99).item())
    return weights(model, losses=losses)


@pattern(
    "evaluation on worker 0 only, with batch normalisation",
    sizes={"relay-sgd": 2},
    ddp="The wrapper's forward broadcasts buffers in evaluation too: worker 0 waits for a broadcast nobody joins.",
)
def evaluate_norm_on_one(s: Session) -> Result:
    from loop_patterns.models import _normed

    model, losses = _normed(), []
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        learn(s, t, optimizer, range(step, step + 1))
        if s.rank == 0:
            model.eval()
            with torch.no_grad():
                losses.append(s.loss(t.model, 99).item())
            model.train()
    return weights(model, losses=losses)


@pattern("evaluation between backward and step")
def evaluate_before_step(s: Session) -> Result:
    model, losses = net(), []
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        with torch.no_grad():
            losses.append(s.loss(t.model, 99).item())
        t.step()
    return weights(model, losses=losses)


@pattern(
    "a collective on one worker only: `run.mean(loss)` on worker 0",
    must="refuse",
    ddp="An all-reduce that one worker alone begins is taken for the next one's, or waits for ever.",
)
def mean_on_one(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    if s.rank == 0:
        t.mean(1.0)
    learn(s, t, optimizer, range(2, 4))
    return weights(model)


@pattern("`run.consensus()` on worker 0 only", must="either", refuse=("d-psgd", "relay-sgd"), methods=TUTTI)
def consensus_on_one(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    if s.rank == 0 and s.ours:
        with t.run.consensus() as mean:
            s.loss(mean, 99)
    learn(s, t, optimizer, range(2, 4))
    return weights(model)


@pattern("a worker raises in mid-run: the others", must="refuse", ddp="")
def one_raises(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        if s.rank == 1 and step == 2:
            raise SystemExit("worker 1 has had enough")
        learn(s, t, optimizer, range(step, step + 1))
    return weights(model)


def _data() -> TensorDataset:
    drawn = torch.Generator().manual_seed(5)
    inputs = torch.randn(26, 3, generator=drawn, dtype=torch.float64)
    return TensorDataset(torch.arange(26), inputs, inputs[:, :2].sin())


def _epochs(t: Any, optimizer: Any, loader: Any, sampler: Any, weigh: bool) -> list[list[float]]:
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for places, inputs, targets in loader:
            seen += [float(place) for place in places]
            optimizer.zero_grad()
            if weigh:
                t.samples = len(places)
            t.backward(functional.mse_loss(t.model(inputs), targets))
            t.step()
    return [seen]


@pattern("`tutti.EpochSampler` as batch_sampler of a DataLoader with two worker processes", methods=TUTTI)
def epoch_sampler(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, momentum=0.0)
    t = s.distribute(model, optimizer)
    if s.oracle:  # from the batches themselves
        seen = []
        sampler = tutti.EpochSampler(26, 8, s.size, s.rank, 0)
        data = _data()
        for epoch in range(2):
            for batch in sampler.epoch(epoch):
                places, inputs, targets = data[batch]
                seen += [float(place) for place in places]
                optimizer.zero_grad()
                t.samples = len(places)
                t.backward(functional.mse_loss(t.model(inputs), targets))
                t.step()
        return weights(model, seen=[seen])
    sampler = tutti.EpochSampler(26, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = DataLoader(_data(), batch_sampler=sampler, num_workers=2, multiprocessing_context="fork")
        return weights(model, seen=_epochs(t, optimizer, loader, sampler, weigh=True))


@pattern("`DistributedSampler` in a DataLoader (Tutti's own where there is one)")
def distributed_sampler(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    sampler: Any
    if s.ours:
        sampler = tutti.data.DistributedSampler(_data(), seed=3)
    else:
        sampler = torch.utils.data.DistributedSampler(_data(), seed=3)
    loader = DataLoader(_data(), batch_size=5, sampler=sampler)
    return weights(model, seen=_epochs(t, optimizer, loader, sampler, weigh=False))


@pattern("torch's `DistributedSampler` with the existing process group")
def torch_sampler(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    sampler = torch.utils.data.DistributedSampler(_data(), seed=3)
    loader = DataLoader(_data(), batch_size=5, sampler=sampler)
    return weights(model, seen=_epochs(t, optimizer, loader, sampler, weigh=False))


@pattern("`mp.spawn` and `init_process_group` only: no launcher's variables in the environment")
def process_group_only(s: Session) -> Result:
    saved = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in os.environ}
    try:
        model = net()
        optimizer = sgd(model)
        t = s.distribute(model, optimizer)
        learn(s, t, optimizer, range(4))
        return weights(model)
    finally:
        os.environ.update(saved)


@pattern("no process group: the launcher's variables only", methods=TUTTI)
def variables_only(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    if not s.oracle:
        dist.barrier()
        dist.destroy_process_group()
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(4))
    return weights(model)


@pattern(
    "two sub-groups of two workers train two models: `distribute(..., group=g)`",
    sizes=dict.fromkeys(METHODS, 4) | {"relay-sgd": 4},
)
def sub_groups(s: Session) -> Result:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = net(seed=s.rank // 2)
    optimizer = sgd(model)
    t = s.distribute(model, optimizer, group=groups[s.rank // 2])
    learn(s, t, optimizer, range(4))
    return weights(model)
