"""Patterns in which the parameters come, go, or change."""

from __future__ import annotations

import torch
from torch import nn

from loop_patterns.registry import REPARAMETRISED, pattern
from loop_patterns.session import Result, Session, learn, net, seeded, sgd, weights

_REDUCER = "DDP knows the parameters that trained when it was built: later ones are never reduced."


class Grown(nn.Module):
    """A trunk, and heads that may come later."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = seeded(5, lambda: nn.Linear(3, 4), lambda: nn.Linear(4, 2))
        self.extra: nn.Module | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(inputs).tanh()
        return self.head(hidden) + (self.extra(hidden) if self.extra is not None else 0)


def _new_head(seed: int) -> nn.Module:
    return seeded(seed, lambda: nn.Linear(4, 2))[0]


@pattern("a new layer and its group (`add_param_group`) in mid-run", sizes=REPARAMETRISED, ddp=_REDUCER)
def added_group(s: Session) -> Result:
    model = Grown()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.extra = _new_head(8)
    optimizer.add_param_group({"params": model.extra.parameters()})
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("the same, the new layer drawn differently on each worker", sizes=REPARAMETRISED, ddp=_REDUCER, must="either")
def added_group_unequal(s: Session) -> Result:
    model = Grown()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.extra = _new_head(8 if s.oracle else 8 + s.rank)  # worker 0's, everywhere, as at the start
    optimizer.add_param_group({"params": model.extra.parameters()})
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("the head is swapped, and the optimizer's group with it", sizes=REPARAMETRISED, ddp=_REDUCER)
def swapped_head(s: Session) -> Result:
    model = Grown()
    optimizer = torch.optim.SGD([{"params": model.trunk.parameters()}, {"params": model.head.parameters()}], lr=0.1)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.head = _new_head(9)
    optimizer.param_groups[1]["params"] = list(model.head.parameters())
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("the head is swapped, the optimizer forgotten", sizes=REPARAMETRISED, must="either", ddp=_REDUCER)
def swapped_head_only(s: Session) -> Result:
    model = Grown()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.head = _new_head(9)
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("layers are unfrozen later; the optimizer has held them from the start", sizes=REPARAMETRISED, ddp=_REDUCER)
def unfrozen(s: Session) -> Result:
    model = Grown()
    model.trunk.requires_grad_(False)
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.trunk.requires_grad_(True)
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("layers are unfrozen later and added as a group", sizes=REPARAMETRISED, ddp=_REDUCER)
def unfrozen_group(s: Session) -> Result:
    model = Grown()
    model.trunk.requires_grad_(False)
    optimizer = sgd(model.head)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.trunk.requires_grad_(True)
    optimizer.add_param_group({"params": model.trunk.parameters()})
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("layers are frozen later", sizes=REPARAMETRISED, variants=("", "frozen are mixed"))
def frozen_later(s: Session) -> Result:
    model = Grown()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.trunk.requires_grad_(False)
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("frozen and unfrozen in turns (every other step)", sizes=REPARAMETRISED, variants=("", "frozen are mixed"))
def frozen_in_turns(s: Session) -> Result:
    model = Grown()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(5):
        model.trunk.requires_grad_(step % 2 == 0)
        learn(s, t, optimizer, range(step, step + 1))
    return weights(model)


@pattern("`vector_to_parameters` in mid-run", variants=("", "relay begins anew"))
def vector_to_parameters(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(vector * 0.5, model.parameters())
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("`p.data = ...` for one parameter in mid-run", variants=("", "relay begins anew"))
def data_replaced(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model[2].weight.data = model[2].weight.data.clone() * 0.5
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("`p.data = ...` between backward and step", must="either", variants=("", "relay begins anew"))
def data_replaced_before_step(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        if step == 2:
            for p in model.parameters():
                p.data = p.data * 0.5
        t.step()
    return weights(model)


@pattern(
    "`model.float()` and back to double in mid-run",
    tolerance=1e-6,
    variants=("", "relay begins anew"),
    ddp="The reducer's hooks were on the parameters as they were: the new memory is not reduced.",
)
def float_and_back(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, momentum=0.0)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.float().double()
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern(
    "the model changes its type for good in mid-run (`model.float()`)",
    tolerance=1e-5,
    must="either",
    ddp="The reducer's buckets keep the type that they were built with.",
    variants=("", "relay begins anew"),
)
def other_type(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, momentum=0.0)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.float()
    for step in range(2, 5):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step, dtype=torch.float32))
        t.step()
    return weights(model)


@pattern(
    "`model.to('cpu')` and `model.to(memory_format=channels_last)` in mid-run",
    sizes=REPARAMETRISED,
    ddp="The reducer was built for the memory that the parameters had.",
)
def channels_last_later(s: Session) -> Result:
    model = nn.Sequential(*seeded(2, lambda: nn.Conv2d(2, 3, 3), nn.Flatten, lambda: nn.Linear(12, 2)))
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(4):
        if step == 2:
            model.to("cpu").to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        drawn = torch.Generator().manual_seed(90 * s.rank + step)
        t.backward(t.model(torch.randn(3, 2, 4, 4, generator=drawn, dtype=torch.float64)).square().mean())
        t.step()
    return weights(model)


@pattern("`load_state_dict` of the model in mid-run, the same on all workers")
def load_weights(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.load_state_dict(net(seed=4).state_dict())
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern(
    "`load_state_dict(assign=True)` in mid-run: other Parameter objects",
    must="either",
    sizes=REPARAMETRISED,
    ddp="The optimizer and the reducer still hold the old parameters: the new ones never move.",
    blind=True,
)
def load_assigned(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    model.load_state_dict(net(seed=4).state_dict(), assign=True)
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("`optimizer.load_state_dict` in mid-run")
def load_optimizer(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(1))
    saved = {**optimizer.state_dict(), "state": {}}
    learn(s, t, optimizer, range(1, 3))
    optimizer.load_state_dict(saved)
    learn(s, t, optimizer, range(3, 5))
    return weights(model)


@pattern(
    "weights are set on one worker only in mid-run",
    must="either",
    refuse=("torch-ddp", "ddp"),
    ddp="DDP averages gradients and never compares weights: the workers stay different for good.",
)
def changed_on_one(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    if s.rank == 1:
        with torch.no_grad():
            model[2].weight.add_(0.1)
    learn(s, t, optimizer, range(2, 104))  # past the next comparison of Tutti's guard
    return weights(model)


@pattern(
    "weights are initialised after `distribute`, differently on each worker",
    must="either",
    refuse=("torch-ddp", "ddp"),
    ddp="DDP copies worker 0's weights when it is built and never again: what is drawn later stays different.",
)
def initialised_late(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    drawn = torch.Generator().manual_seed(s.rank)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3, generator=drawn)
    learn(s, t, optimizer, range(4))
    return weights(model)
