"""Patterns around the optimizer: several of them, their hooks, closures, schedules, groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from loop_patterns.registry import REPARAMETRISED, pattern
from loop_patterns.session import TUTTI, Result, Session, learn, net, seeded, sgd, weights


def adam(model: nn.Module, **options: Any) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.01, **options)


def _noise(s: Session, step: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(77 * s.rank + step), dtype=torch.float64)


class Gan(nn.Module):
    """A generator 3 -> 2 and a discriminator 2 -> 1."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.generator = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
            self.discriminator = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.discriminator(self.generator(noise))


@pattern("a GAN: two models, two runs")
def gan_two_runs(s: Session) -> Result:
    gan = Gan()
    opt_g, opt_d = adam(gan.generator), adam(gan.discriminator)
    g, d = s.distribute(gan.generator, opt_g), s.distribute(gan.discriminator, opt_d)
    for step in range(4):
        real, fake = s.batch(step)[1], g.model(_noise(s, step))
        opt_d.zero_grad()
        d.backward(functional.softplus(-d.model(real)).mean() + functional.softplus(d.model(fake.detach())).mean())
        d.step()
        opt_g.zero_grad()
        g.backward(functional.softplus(-d.model(fake)).mean())
        g.step()
    return weights(gan)


@pattern(
    "a GAN as one model with two optimizers: `distribute(model, [opt_g, opt_d])`",
    ddp="The two parts are called by themselves, not through the wrapper's forward: nothing is reduced.",
)
def gan_two_optimizers(s: Session) -> Result:
    gan = Gan()
    opt_g, opt_d = adam(gan.generator), adam(gan.discriminator)
    t = s.distribute(gan, [opt_g, opt_d])
    for step in range(4):
        real, fake = s.batch(step)[1], gan.generator(_noise(s, step))
        gan.zero_grad()
        scores = gan.discriminator(real), gan.discriminator(fake.detach())
        t.backward(functional.softplus(-scores[0]).mean() + functional.softplus(scores[1]).mean())
        t.step(optimizer=opt_d)
        gan.zero_grad()
        t.backward(functional.softplus(-gan.discriminator(fake)).mean())
        t.step(optimizer=opt_g)
    return weights(gan)


@pattern(
    "the same with batch normalisation in the generator, whose graph outlives the discriminator's backward",
    sizes={"relay-sgd": 2},
    ddp="The two parts are called by themselves, not through the wrapper's forward: nothing is reduced.",
)
def gan_batch_norm(s: Session) -> Result:
    gan = Gan()
    gan.generator = nn.Sequential(
        *seeded(6, lambda: nn.Linear(3, 5), lambda: nn.BatchNorm1d(5), lambda: nn.Linear(5, 2))
    )
    opt_g, opt_d = adam(gan.generator), adam(gan.discriminator)
    t = s.distribute(gan, [opt_g, opt_d])
    for step in range(4):
        fake = gan.generator(_noise(s, step))
        opt_d.zero_grad()
        scores = gan.discriminator(s.batch(step)[1]), gan.discriminator(fake.detach())
        t.backward(functional.softplus(-scores[0]).mean() + functional.softplus(scores[1]).mean())
        t.step(optimizer=opt_d)
        opt_g.zero_grad()
        t.backward(functional.softplus(-gan.discriminator(fake)).mean())
        t.step(optimizer=opt_g)
    return weights(gan)


@pattern("Muon for matrices and AdamW for the rest: `distribute(model, [muon, adamw])`")
def muon_and_adamw(s: Session) -> Result:
    model = net()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    muon, adamw = torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(rest, lr=0.01)
    t = s.distribute(model, [muon, adamw])
    for step in range(4):
        model.zero_grad()
        t.backward(s.loss(t.model, step))
        t.step()
    return weights(model)


@pattern(
    "two optimizers, each distributed on the same model: two runs",
    must="either",
    ddp="Each parameter is reduced twice, by two wrappers of one model.",
)
def two_runs_one_model(s: Session) -> Result:
    model = net()
    opt_a = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    opt_b = torch.optim.Adam(model[2].parameters(), lr=0.01)
    a, b = s.distribute(model, opt_a), s.distribute(model, opt_b)
    for step in range(4):
        model.zero_grad()
        a.backward(s.loss(a.model, step))
        a.step()
        b.step()
    return weights(model)


@pattern("a second run on the same model while the first is forgotten (a notebook cell run twice)", must="either")
def run_again(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("a run is closed, and a new one begins on the same model")
def closed_then_new(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    t.close()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("the same optimizer goes on after its run was closed and set up again")
def closed_same_optimizer(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    t.close()
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2, 5))
    return weights(model)


@pattern("Adam")
def plain_adam(s: Session) -> Result:
    model = net()
    optimizer = adam(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(5))
    return weights(model)


@pattern("AdamW, fused")
def fused_adamw(s: Session) -> Result:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    learn(s, s.distribute(model, optimizer), optimizer, range(5))
    return weights(model)


@pattern("an optimizer of the user's own class")
def own_optimizer(s: Session) -> Result:
    class Normalised(torch.optim.Optimizer):
        """Steps along the gradient over its norm over all parameters."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.05})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in every]).norm()
            for p in every:
                p -= 0.05 * p.grad / norm

    model = net()
    optimizer = Normalised(model.parameters())
    learn(s, s.distribute(model, optimizer), optimizer, range(5))
    return weights(model)


def _grouped(model: nn.Module, **options: Any) -> torch.optim.AdamW:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.01, **options
    )


@pattern("groups with and without weight decay")
def decay_groups(s: Session) -> Result:
    model = net()
    optimizer = _grouped(model)
    learn(s, s.distribute(model, optimizer), optimizer, range(5))
    return weights(model)


@pattern("optimizer hooks before and after the step, counted, with two groups")
def step_hooks(s: Session) -> Result:
    model, counts = net(), [0, 0]
    optimizer = _grouped(model)

    def count(place: int) -> Any:
        def hook(*_: Any) -> None:
            counts[place] += 1

        return hook

    optimizer.register_step_pre_hook(count(0))
    optimizer.register_step_post_hook(count(1))
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model, counts=counts)


@pattern("an optimizer hook that clips the gradients of all parameters before the step, with two groups")
def clipping_hook(s: Session) -> Result:
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 0.1) and None)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)


@pattern("optimizer hooks with `update=bucket`", must="either", methods=("ddp", "allreduce-model", "d-psgd"))
def step_hooks_by_bucket(s: Session) -> Result:
    model, counts = net(), [0]
    optimizer = _grouped(model)

    def count(*_: Any) -> None:
        counts[0] += 1

    optimizer.register_step_post_hook(count)
    learn(s, s.distribute(model, optimizer, options="update=bucket"), optimizer, range(4))
    return weights(model, counts=counts)


@pattern("StepLR after every step")
def step_lr(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
    for step in range(5):
        learn(s, t, optimizer, range(step, step + 1))
        schedule.step()
    return weights(model)


@pattern("OneCycleLR, which moves momentum too, made before `distribute`")
def one_cycle(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=8)
    t = s.distribute(model, optimizer)
    for step in range(6):
        learn(s, t, optimizer, range(step, step + 1))
        schedule.step()
    return weights(model)


@pattern("ReduceLROnPlateau on the mean loss of all workers (`run.mean`)")
def plateau(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, lr=0.3)
    t = s.distribute(model, optimizer)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    rates = []
    for step in range(6):
        optimizer.zero_grad()
        loss = s.loss(t.model, step)
        t.backward(loss)
        t.step()
        schedule.step(t.mean(loss.item()))
        rates.append(optimizer.param_groups[0]["lr"])
    return weights(model, rates=rates)


@pattern("LBFGS with a closure", must="either", tolerance=1e-7)
def lbfgs(s: Session) -> Result:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    t = s.distribute(model, optimizer)
    for step in range(3):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = s.loss(t.model, step)
            t.backward(loss)
            return t.mean(loss.item())

        t.step(closure=closure)
    return weights(model)


@pattern("SGD with a closure", must="either")
def sgd_closure(s: Session) -> Result:
    model = net()
    optimizer = sgd(model)
    t = s.distribute(model, optimizer)
    for step in range(3):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = s.loss(t.model, step)
            t.backward(loss)
            return loss

        t.step(closure=closure)
    return weights(model)


@pattern(
    "an optimizer per parameter, stepping in backward's hooks (torch's tutorial)",
    must="either",
    ddp="The user's hooks step with the local gradient, before the reduction is over.",
)
def optimizer_in_backward(s: Session) -> Result:
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    t = s.distribute(model, list(optimizers.values()))

    def step_at_once(p: Any) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    if not s.oracle:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step_at_once)
    for step in range(3):
        t.backward(s.loss(t.model, step))
        if s.oracle:
            t.step()
            model.zero_grad()
    return weights(model)


@pattern("a second optimizer, unknown to the run, trains the head", must="either")
def unknown_optimizer(s: Session) -> Result:
    model = net()
    known = torch.optim.SGD(model[0].parameters(), lr=0.1)
    unknown = torch.optim.SGD(model[2].parameters(), lr=0.1)
    t = s.distribute(model, known)
    for step in range(4):
        model.zero_grad()
        t.backward(s.loss(t.model, step))
        t.step()
        unknown.step()
    return weights(model)


@pattern("the optimizer is replaced by another one in mid-run, the run goes on", must="refuse", methods=TUTTI)
def optimizer_replaced(s: Session) -> Result:
    model = net()
    optimizer: Any = sgd(model)
    t = s.distribute(model, optimizer)
    learn(s, t, optimizer, range(2))
    optimizer = adam(model)
    for step in range(2, 4):
        optimizer.zero_grad()
        t.backward(s.loss(t.model, step))
        optimizer.step()
    return weights(model)


@pattern(
    "the learning rate differs on one worker",
    must="either",
    refuse=("torch-ddp", "ddp"),
    ddp="DDP averages gradients and never looks at the weights: workers that step differently drift apart for good.",
)
def other_rate(s: Session) -> Result:
    model = net()
    optimizer = sgd(model, lr=0.1 if s.rank else 0.2)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)


@pattern("a group's parameters are all frozen while the optimizer holds them", sizes=REPARAMETRISED)
def frozen_group(s: Session) -> Result:
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    learn(s, s.distribute(model, optimizer), optimizer, range(4))
    return weights(model)
