"""Patterns around saving, copying and resuming."""

from __future__ import annotations

import copy
import io
import os

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from loop_patterns.registry import pattern
from loop_patterns.session import Result, Session, learn, net, sgd, weights


@pattern("an exponential moving average: `AveragedModel(model)`")
def averaged_model(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for step in range(4):
        learn(s, t, optimizer, range(step, step + 1))
        average.update_parameters(model)
    return weights(model, average.module)


@pattern("`AveragedModel(model)` in mid-run, after the first steps")
def averaged_model_later(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    average = AveragedModel(model)
    for step in range(2, 4):
        learn(s, t, optimizer, range(step, step + 1))
        average.update_parameters(model)
    return weights(model, average.module)


@pattern("`copy.deepcopy(model)` in mid-run (a teacher), then trained alone")
def deepcopied(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    teacher = copy.deepcopy(model)
    alone = torch.optim.SGD(teacher.parameters(), lr=0.1)
    learn(s, t, optimizer, range(2, 4))
    for step in range(2):
        alone.zero_grad()
        s.loss(teacher, 40 + step).backward()
        alone.step()
    return weights(model, teacher)


@pattern("`copy.deepcopy(model)` between backward and step")
def deepcopied_before_step(s: Session) -> Result:
    model, copies = net(), []
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        copies.append(copy.deepcopy(model))
        t.step()
    return weights(model, *copies)


@pattern("`copy.deepcopy` of model and optimizer together, trained alone")
def deepcopied_pair(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    other, alone = copy.deepcopy((model, optimizer))
    for step in range(2):
        alone.zero_grad()
        s.loss(other, 40 + step).backward()
        alone.step()
    learn(s, t, optimizer, range(2, 4))
    return weights(model, other)


@pattern("`torch.save(model)` of the whole module in mid-run, and loaded again")
def saved_module(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    file = io.BytesIO()
    torch.save(model, file)
    learn(s, t, optimizer, range(2, 4))
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    return weights(model, loaded)


@pattern("`torch.save(model.state_dict())` in mid-run: no larger than the weights")
def saved_state_dict(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    sizes = []
    for saved in (model, net()):
        file = io.BytesIO()
        torch.save(saved.state_dict(), file)
        sizes.append(len(file.getvalue()))
    larger = float(sizes[0] > 1.5 * sizes[1])
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    return weights(model, larger=[larger])


@pattern("save, go on; then a new model and run load it and go on: the same bits")
def resumed(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(3))
    t.save(s.folder)
    learn(s, t, optimizer, range(3, 5))
    t.close()
    again = net(seed=1)
    optimizer = sgd(again)
    new = s.distribute(again, optimizer)
    new.load(s.folder, t)
    learn(s, new, optimizer, range(3, 5))
    return weights(model, again)


@pattern(
    "state_dicts of model and optimizer saved by worker 0 and loaded by all before `distribute`",
    sizes={"d-psgd": 2, "relay-sgd": 2},
)
def resumed_by_hand(s: Session) -> Result:
    """On two workers all methods hold equal weights, so that worker 0's are everybody's; without momentum."""
    path = os.path.join(s.folder, "checkpoint.pt")
    model = net()
    optimizer = sgd(model, momentum=0.0)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(3))
    if s.rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    t.mean(0.0)  # everybody waits for the file
    t.close()
    model = net(seed=1)
    optimizer = sgd(model, momentum=0.0)
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(3, 5))
    return weights(model)


@pattern("early stopping: the best weights are kept (`deepcopy(state_dict)`) and put back at the end")
def best_weights(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    best: tuple[float, dict[str, torch.Tensor]] = (float("inf"), {})
    for step in range(5):
        learn(s, t, optimizer, range(step, step + 1))
        with torch.no_grad():
            loss = t.mean(s.loss(model, 99).item())
        if loss < best[0] and step < 4:
            best = loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(best[1])
    return weights(model)


@pattern("a fork in mid-run: the child drops the model, the parent trains on")
def forked(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    import gc
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            del t, model, optimizer
            s.handles.clear()
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    learn(s, t, optimizer, range(2, 4))
    return weights(model)


@pattern("the run is never closed, the model goes on to be used after the run is dropped")
def dropped(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(3))
    t.mean(0.0)
    t.close()
    del t
    s.handles.clear()
    import gc

    gc.collect()
    return weights(model, outputs=[model(s.batch(99)[0]).detach()])
