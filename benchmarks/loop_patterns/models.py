"""Patterns around the model: what it is made of, who wraps it, which of its parameters a step uses."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from loop_patterns.registry import REPARAMETRISED, pattern
from loop_patterns.session import Result, Session, learn, net, seeded, sgd, weights


class Forked(nn.Module):
    """One branch per call; the last one is used by no worker."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, *branches = seeded(5, *(lambda: nn.Linear(3, 3) for _ in range(4)))
        self.branches = nn.ModuleList(branches)
        self.branch = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.branches[self.branch](self.trunk(inputs).tanh())[:, :2]


_UNUSED = "DDP stops at the next forward unless find_unused_parameters=True is given."


@pattern("a parameter that only some workers use")
def unused_on_one(s: Session) -> Result:
    model = Forked()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer, ddp={"find_unused_parameters": True})
    for step in range(4):
        model.branch = (s.rank + step) % 2
        learn(s, t, optimizer, range(step, step + 1))
    return weights(model)


@pattern("the same, without `find_unused_parameters`", ddp=_UNUSED)
def unused_on_one_plainly(s: Session) -> Result:
    model = Forked()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        model.branch = (s.rank + step) % 2
        learn(s, t, optimizer, range(step, step + 1))
    return weights(model)


@pattern("a parameter that no worker uses, with weight decay", ddp=_UNUSED)
def unused_on_all(s: Session) -> Result:
    model = Forked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)


@pattern("frozen backbone: only the head trains")
def frozen_backbone(s: Session) -> Result:
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)


@pattern("tied weights")
def tied(s: Session) -> Result:
    model = nn.Sequential(*seeded(7, lambda: nn.Linear(3, 3), nn.Tanh, lambda: nn.Linear(3, 3)))
    model[2].weight = model[0].weight
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = s.batch(step)
        t.backward(functional.mse_loss(t.model(inputs)[:, :2], targets))
        t.step()
    return weights(model)


@pattern("weight normalisation (parametrizations)")
def parametrized(s: Session) -> Result:
    model = net()
    nn.utils.parametrizations.weight_norm(model[0])
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)


@pattern("pruning (`nn.utils.prune`) from the start")
def pruned(s: Session) -> Result:
    from torch.nn.utils import prune

    model = net()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model, effective=[model[0].weight.detach().clone()])


def _compiled(s: Session, backend: str, before: bool) -> Result:
    model = net()
    optimizer = sgd(model)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if before:
            called: Any = torch.compile(model, backend=backend)
            t = s.distribute(called, optimizer)
            called = t.model if s.method == "torch-ddp" else called
        else:
            t = s.distribute(model, optimizer)
            called = torch.compile(model if s.oracle else t.model, backend=backend)
        learn(s, t, optimizer, range(4), called)
    text = [str(w.message) for w in seen if "dynamo" in str(w.message).lower() or "graph break" in str(w.message)]
    return weights(model, warnings=[float(len(text))])


@pattern("`torch.compile` before `distribute` (eager backend)")
def compiled_before(s: Session) -> Result:
    return _compiled(s, "eager", before=True)


@pattern("`torch.compile` after `distribute` (eager backend)")
def compiled_after(s: Session) -> Result:
    return _compiled(s, "eager", before=False)


@pattern("`torch.compile` before `distribute` (aot_eager backend)")
def compiled_aot(s: Session) -> Result:
    return _compiled(s, "aot_eager", before=True)


@pattern("`model.compile()` in place, after `distribute`")
def compiled_in_place(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    model.compile(backend="eager")
    learn(s, t, optimizer, range(4))
    return weights(model)


class Checkpointed(nn.Module):
    """The hidden layer is computed again in backward."""

    def __init__(self, reentrant: bool, twice: bool = False) -> None:
        super().__init__()
        self.inner, self.reentrant, self.twice = net(), reentrant, twice

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs.clone().requires_grad_()
        hidden = checkpoint(self.inner[:2], inputs, use_reentrant=self.reentrant)
        if self.twice:
            hidden = hidden + checkpoint(self.inner[:2], inputs * 0.5, use_reentrant=self.reentrant)
        return self.inner[2](hidden)


def _checkpointed(s: Session, **how: bool) -> Result:
    model = Checkpointed(**how)
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)


@pattern("gradient checkpointing, `use_reentrant=False`")
def checkpointing(s: Session) -> Result:
    return _checkpointed(s, reentrant=False)


@pattern("gradient checkpointing, `use_reentrant=True`")
def checkpointing_reentrant(s: Session) -> Result:
    return _checkpointed(s, reentrant=True)


@pattern("a layer checkpointed twice, `use_reentrant=True`", must="either")
def checkpointing_twice(s: Session) -> Result:
    return _checkpointed(s, reentrant=True, twice=True)


@pattern("batch normalisation: weights", sizes=REPARAMETRISED)
def batch_norm(s: Session) -> Result:
    model = _normed()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)


@pattern(
    "batch normalisation: running statistics of every worker at the end",
    sizes=REPARAMETRISED,
    ddp="DDP copies worker 0's buffers at the next forward: at the end every other worker keeps its own statistics.",
)
def batch_norm_buffers(s: Session) -> Result:
    model = _normed()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model, buffers=[b.double() for b in model.buffers()])


def _normed() -> nn.Sequential:
    return nn.Sequential(*seeded(4, lambda: nn.Linear(3, 4), lambda: nn.BatchNorm1d(4), lambda: nn.Linear(4, 2)))


@pattern("the model in eval() while it trains (frozen batch norm)", sizes=REPARAMETRISED)
def eval_mode(s: Session) -> Result:
    model = _normed().eval()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model, buffers=[b.double() for b in model.buffers()])


@pattern("dropout, another seed on each worker")
def dropout(s: Session) -> Result:
    model = nn.Sequential(*seeded(4, lambda: nn.Linear(3, 8), nn.Dropout, lambda: nn.Linear(8, 2)))
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    torch.manual_seed(s.rank)
    learn(s, t, optimizer, range(4))
    return weights(model)


@pattern("dropout, seeded before `distribute`: it draws no random numbers")
def dropout_seeded_before(s: Session) -> Result:
    model = nn.Sequential(*seeded(4, lambda: nn.Linear(3, 8), nn.Dropout, lambda: nn.Linear(8, 2)))
    optimizer = sgd(model)
    torch.manual_seed(s.rank)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(4))
    return weights(model)


@pattern("a recurrent net, with backpropagation through time")
def recurrent(s: Session) -> Result:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = seeded(6, lambda: nn.LSTM(3, 4, batch_first=True), lambda: nn.Linear(4, 2))

        def forward(self, inputs: torch.Tensor, state: Any) -> Any:
            hidden, state = self.cell(inputs, state)
            return self.out(hidden), state

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    t = s.distribute(model, optimizer)
    state = None
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = s.batch(step, 6)
        outputs, state = t.model(inputs.view(2, 3, 3), state)
        state = tuple(part.detach() for part in state)
        t.backward(functional.mse_loss(outputs.reshape(6, 2), targets))
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        t.step()
    return weights(model)


@pattern("sparse gradients of an embedding", must="either")
def sparse_embedding(s: Session) -> Result:
    embedding, head = seeded(6, lambda: nn.Embedding(10, 3, sparse=True), lambda: nn.Linear(3, 2))
    model = nn.Sequential(embedding, head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    t = s.distribute(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        words = torch.randint(10, (4,), generator=torch.Generator().manual_seed(10 * s.rank + step))
        t.backward(functional.mse_loss(t.model(words), s.batch(step)[1]))
        t.step()
    return weights(model)


@pattern(
    "the model uses its own method, not forward (`model.loss(x)`)",
    ddp="The wrapper has no such method, and on the inner model nothing is reduced.",
)
def own_method(s: Session) -> Result:
    class WithMethod(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return functional.mse_loss(self.inner(inputs), targets)

    model = WithMethod()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(model.loss(*s.batch(step)))
        t.step()
    return weights(model)


@pattern(
    "parts of the model are called by themselves (encoder, then decoder)",
    ddp="Only the wrapper's forward prepares the reduction.",
)
def called_by_parts(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = s.batch(step)
        t.backward(functional.mse_loss(model[2](model[1](model[0](inputs))), targets))
        t.step()
    return weights(model)


@pattern(
    "a trainable temperature that is in the optimizer, not in the model",
    ddp="DDP reduces the parameters of the model only.",
)
def outside_parameter(s: Session) -> Result:
    model = net()
    scale = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        inputs, targets = s.batch(step)
        t.backward(functional.mse_loss(t.model(inputs) * scale, targets))
        t.step()
    return weights(model, scale=[scale.detach().clone()])


@pattern("a model with empty and scalar parameters")
def odd_shapes(s: Session) -> Result:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()
            self.scalar = nn.Parameter(torch.ones((), dtype=torch.float64))
            self.empty = nn.Parameter(torch.zeros(0, 3, dtype=torch.float64))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.inner(inputs) * self.scalar + self.empty.sum()

    model = Odd()
    optimizer = sgd(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)


@pattern("LoRA: small matrices put beside frozen layers before `distribute`")
def lora(s: Session) -> Result:
    class Lora(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            drawn = torch.Generator().manual_seed(2)
            self.down = nn.Parameter(torch.randn(1, layer.in_features, generator=drawn, dtype=torch.float64))
            self.up = nn.Parameter(torch.zeros(layer.out_features, 1, dtype=torch.float64))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layer(inputs) + inputs @ self.down.T @ self.up.T

    model = net()
    model[0], model[2] = Lora(model[0]), Lora(model[2])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)
