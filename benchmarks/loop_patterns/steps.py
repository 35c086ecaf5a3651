"""Patterns around a step: accumulation, clipping, several backwards, who calls what and when."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from loop_patterns.registry import pattern
from loop_patterns.session import TUTTI, Result, Session, learn, net, seeded, sgd, weights


@pattern("the plain loop")
def plain(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(5))
    return weights(model)


@pattern(
    "the user's own model is called, not the wrapper",
    ddp="Only the wrapper's forward prepares the reduction: with the inner model no gradient is ever exchanged.",
)
def own_model(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(5), model)
    return weights(model)


@pattern("accumulation, in `no_sync` / `run.accumulate()`")
def accumulate(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(3):
            with t.accumulate() if part < 2 else nullcontext():
                t.backward(s.loss(t.model, 10 * step + part) / 3)
        t.step()
    return weights(model)


@pattern("accumulation without a word: several backwards, then the step")
def accumulate_plainly(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(3):
            t.backward(s.loss(t.model, 10 * step + part) / 3)
        t.step()
    return weights(model)


@pattern(
    "accumulation whose last backward is inside `no_sync` too (an epoch that ends early)",
    ddp="All backwards were inside no_sync(): the step uses each worker's own gradient, and the weights drift apart.",
)
def accumulate_all(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            with t.accumulate():
                t.backward(s.loss(t.model, 10 * step + part) / 2)
        t.step()
    return weights(model)


@pattern("gradients are never set to zero")
def never_zero(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, momentum=0.0)
    t = s.distribute(model, optimizer)
    for step in range(4):
        t.backward(s.loss(t.model, step))
        t.step()
    return weights(model)


@pattern("clipping by norm")
def clip_norm(s: Session) -> Result:
    model, norms = net(), []
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.2)))
        t.step()
    return weights(model, norms=norms)


@pattern("clipping by value")
def clip_value(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        t.step()
    return weights(model)


@pattern("`update=bucket` with clipping", must="refuse", methods=("ddp", "allreduce-model", "d-psgd", "relay-sgd"))
def update_bucket_clip(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer, options="update=bucket")
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        t.step()
    return weights(model)


@pattern("`update=bucket`, plain loop", methods=TUTTI)
def update_bucket(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer, options="update=bucket"), optimizer, range(4))
    return weights(model)


@pattern("`wait=forward` with `model.state_dict()` after each step", methods=("ddp",))
def wait_forward_state_dict(s: Session) -> Result:
    model = nn.Sequential(net(), *seeded(2, *[partial(nn.Linear, 2, 200), partial(nn.Linear, 200, 2)] * 3))
    optimizer = sgd(model)
    t = s.distribute(model, optimizer, options="update=bucket, wait=forward, bucket=4KiB")
    seen = []
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        t.step()
        seen += [tensor.clone() for tensor in model.state_dict().values()]
    return {"states": seen}


@pattern("`wait=forward` with `model.parameters()` read after each step (an EMA by hand)", methods=("ddp",))
def wait_forward_parameters(s: Session) -> Result:
    model = nn.Sequential(net(), *seeded(2, *[partial(nn.Linear, 2, 200), partial(nn.Linear, 200, 2)] * 3))
    optimizer = sgd(model)
    t = s.distribute(model, optimizer, options="update=bucket, wait=forward, bucket=4KiB")
    average = [p.detach().clone() for p in model.parameters()]
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        t.step()
        for mine, p in zip(average, model.parameters(), strict=True):
            mine.lerp_(p.detach(), 0.5)
    return {"average": average}


@pattern("two losses, two forwards, two backwards per step")
def two_backwards(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        t.backward(0.5 * s.loss(t.model, 100 + step))
        t.step()
    return weights(model)


@pattern(
    "one forward, two losses, the first backward with `retain_graph`",
    ddp="The second backward of one forward is not reduced: only the first one's gradient is the mean of all workers.",
)
def retain_graph(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = s.batch(step)
        outputs = t.model(inputs)
        t.backward(functional.mse_loss(outputs, targets), retain_graph=True)
        t.backward(outputs.pow(2).mean())
        t.step()
    return weights(model)


@pattern("two forwards, one backward of both losses")
def two_forwards(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step) + s.loss(t.model, 50 + step))
        t.step()
    return weights(model)


@pattern("gradient penalty: `torch.autograd.grad(create_graph=True)`, then backward")
def gradient_penalty(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = s.batch(step)
        inputs.requires_grad_()
        outputs = t.model(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        t.backward(functional.mse_loss(outputs, targets) + 0.1 * slope.square().mean())
        t.step()
    return weights(model)


@pattern(
    "gradients from `torch.autograd.grad`, put into `p.grad` by hand",
    ddp="No hook of DDP sees gradients that come without backward(): every worker steps with its own.",
)
def gradients_by_hand(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        parameters = list(model.parameters())
        for p, grad in zip(parameters, torch.autograd.grad(s.loss(t.model, step), parameters), strict=True):
            p.grad = grad
        t.step()
    return weights(model)


@pattern(
    "`torch.func`: functional_call and grad, put into `p.grad`",
    ddp="The wrapper's forward is passed by and no backward() runs: nothing is ever exchanged.",
)
def functional_gradients(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)

    def loss(named: dict[str, torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(torch.func.functional_call(model, named, (inputs,)), targets)

    for step in range(4):
        named = {name: p.detach() for name, p in model.named_parameters()}
        for name, grad in torch.func.grad(loss)(named, *s.batch(step)).items():
            model.get_parameter(name).grad = grad
        t.step()
    return weights(model)


@pattern(
    "`functional_call` with the model's own parameters, then backward",
    ddp="functional_call on the inner model passes the wrapper's forward by: nothing is reduced.",
)
def functional_forward(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = s.batch(step)
        outputs = torch.func.functional_call(model, dict(model.named_parameters()), (inputs,))
        t.backward(functional.mse_loss(outputs, targets))
        t.step()
    return weights(model)


@pattern(
    "meta-learning (MAML): an inner step by autograd.grad, then functional_call with the fast weights, then backward",
    ddp="functional_call on the inner model passes the wrapper's forward by: nothing is reduced.",
)
def fast_weights(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        named = dict(model.named_parameters())
        inner = torch.autograd.grad(s.loss(model, step), list(named.values()), create_graph=True)
        fast = {name: p - 0.1 * grad for (name, p), grad in zip(named.items(), inner, strict=True)}
        inputs, targets = s.batch(20 + step)
        t.backward(functional.mse_loss(torch.func.functional_call(model, fast, (inputs,)), targets))
        t.step()
    return weights(model)


@pattern("gradients scaled in place between backward and step")
def gradients_scaled(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        for p in model.parameters():
            assert p.grad is not None
            p.grad.mul_(0.5)
        t.step()
    return weights(model)


@pattern("gradients replaced between backward and step (`p.grad = f(p.grad)`)")
def gradients_replaced(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        for p in model.parameters():
            assert p.grad is not None
            p.grad = p.grad.sign() * 0.01
        t.step()
    return weights(model)


@pattern("one parameter's gradient set to None between backward and step")
def gradient_dropped(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        if step % 2:
            model[0].weight.grad = None
        t.step()
    return weights(model)


@pattern("`update=bucket` with gradients scaled between backward and step", must="refuse", methods=("ddp", "d-psgd"))
def update_bucket_scaled(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer, options="update=bucket")
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(0.5)
        t.step()
    return weights(model)


@pattern("`zero_grad(set_to_none=False)`")
def zero_in_place(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad(set_to_none=False)
        t.backward(s.loss(t.model, step))
        t.step()
    return weights(model)


@pattern("`zero_grad()` between forward and backward")
def zero_late(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        loss = s.loss(t.model, step)
        optimizer.zero_grad()
        t.backward(loss)
        t.step()
    return weights(model)


@pattern("`model.zero_grad()` after the step")
def zero_after(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        t.backward(s.loss(t.model, step))
        t.step()
        model.zero_grad()
    return weights(model)


@pattern("`optimizer.step()` in place of `run.step()`", must="refuse", methods=TUTTI)
def foreign_step(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    t.backward(s.loss(t.model, 0))
    optimizer.step()
    return weights(model)


@pattern("a step without a backward, on all workers")
def no_backward(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    optimizer.zero_grad()
    t.step()
    learn(s, t, optimizer, range(2, 4))
    return weights(model)


@pattern("weights clamped by hand after each step (WGAN)")
def clamp(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        learn(s, t, optimizer, range(step, step + 1))
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.3, 0.3)
    return weights(model)


@pattern("a tensor hook on a parameter scales its gradient")
def tensor_hooks(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    model[0].weight.register_hook(lambda grad: grad * 0.5)
    learn(s, t, optimizer, range(4))
    return weights(model)


@pattern("a post-accumulate-grad hook of the user, put on before `distribute`, changes gradients")
def accumulate_hook_before(s: Session) -> Result:
    return _with_accumulate_hook(s, before=True)


@pattern(
    "the same hook, put on after `distribute`",
    must="either",
    ddp="The hook changes p.grad while the bucket it lies in may be on its way.",
)
def accumulate_hook_after(s: Session) -> Result:
    return _with_accumulate_hook(s, before=False)


def _with_accumulate_hook(s: Session, before: bool) -> Result:
    model, calls = net(), [0]
    optimizer = sgd(model)

    def halve(p: torch.Tensor) -> None:
        calls[0] += 1
        assert p.grad is not None
        p.grad.mul_(0.5)

    handle = model[0].weight.register_post_accumulate_grad_hook(halve) if before else None
    t = s.distribute(model, optimizer)
    if handle is None:
        model[0].weight.register_post_accumulate_grad_hook(halve)
    learn(s, t, optimizer, range(4))
    return weights(model, calls=calls)


@pattern("a NaN loss on one worker is skipped by agreement (`run.any` / all-reduce)")
def skip_together(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        loss = s.loss(t.model, step)
        bad = step == 2 and s.rank == 1
        if t.mean(float(bad)) > 0:
            continue
        t.backward(loss)
        t.step()
    return weights(model)


@pattern("forward and loss in one: the model returns a dict with the loss")
def dict_output(s: Session) -> Result:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, *, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            outputs = self.inner(inputs)
            return {"loss": functional.mse_loss(outputs, labels), "outputs": outputs}

    model = WithLoss()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        inputs, labels = s.batch(step)
        t.backward(t.model(inputs=inputs, labels=labels)["loss"])
        t.step()
    return weights(model)
