"""What each process of tests/algorithms/test_torch_ddp.py does: torch's own DDP beside ours, over gloo."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from training import momentum, seeded, set_up

from tutti.comm.base import Comm
from tutti.engine import Run
from tutti.errors import UserError

State = dict[str, np.ndarray[Any, Any]]

STEPS, SAMPLES, PARTS = 4, 6, 2


def convolutional(norm: bool) -> nn.Sequential:
    """LeNet in small, from 1x12x12 to 3 classes; with batch normalisation where asked for."""
    with seeded(1):
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.Tanh(), nn.AvgPool2d(2)),
            *(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6) if norm else nn.Identity(), nn.Tanh(), nn.Flatten()),
            nn.Linear(54, 3),
        ).double()


class Branching(nn.Module):
    """Every worker uses a head of its own; one head is used by nobody."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        with seeded(2):
            self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.Tanh()).double()
            self.heads = nn.ModuleList(nn.Linear(5, 3).double() for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        return self.heads[self.rank](self.trunk(images))


def images(worker: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * worker + step)
    pictures = torch.randn(SAMPLES, 1, 12, 12, generator=generator, dtype=torch.float64)
    return pictures, torch.randint(3, (SAMPLES,), generator=generator)


def joint_images(workers: int, step: int) -> tuple[Tensor, Tensor]:
    parts = [images(worker, step) for worker in range(workers)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def learn(run: Run, steps: range, parts: int = 1) -> None:
    """With several parts per step, all but the last only add up."""
    for step in steps:
        run.replica.optimizer.zero_grad()
        for part in range(parts - 1):
            with run.accumulate():
                loss(run, 50 * part + step).backward()
        loss(run, 50 * (parts - 1) + step).backward()
        run.step()


def loss(run: Run, step: int) -> Tensor:
    pictures, labels = images(run.rank, step)
    return nn.functional.cross_entropy(run.model(pictures), labels)


def state(model: nn.Module) -> State:
    """In numpy, which goes through a pipe without shared memory."""
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def trained(comm: Comm, algorithm: str, model: nn.Module, parts: int = 1) -> State:
    with set_up(comm, algorithm, model) as run:
        learn(run, range(STEPS), parts)
    return state(model)


def compare(comm: Comm) -> dict[str, Any]:
    """Everything that the tests look at, of this worker."""
    ours, theirs = "ddp(bucket=1KiB)", "torch-ddp(bucket=1KiB)"
    both = {"ours": ours, "theirs": theirs}
    return {
        "plain": {who: trained(comm, spec, convolutional(norm=False)) for who, spec in both.items()},
        "norm": {who: trained(comm, spec, convolutional(norm=True)) for who, spec in both.items()},
        "parts": {who: trained(comm, spec, convolutional(norm=False), PARTS) for who, spec in both.items()},
        "unused": {
            "ours": trained(comm, ours, Branching(comm.rank)),
            "theirs": trained(comm, "torch-ddp(unused=true)", Branching(comm.rank)),
        },
        "resumed": resumed(comm, theirs),
        "facts": facts(comm, theirs),
    }


def resumed(comm: Comm, algorithm: str) -> State:
    file = io.BytesIO()
    with set_up(comm, algorithm, convolutional(norm=False)) as run:
        learn(run, range(STEPS // 2))
        torch.save(run.state_dict(), file)
    file.seek(0)
    with set_up(comm, algorithm, convolutional(norm=False)) as run:
        run.load_state_dict(torch.load(file, weights_only=True))
        learn(run, range(STEPS // 2, STEPS))
        return state(run.replica.model)


def facts(comm: Comm, algorithm: str) -> dict[str, Any]:
    model = convolutional(norm=False)
    with set_up(comm, algorithm, model) as run:
        learn(run, range(STEPS))
        refused = ""
        try:
            run.replica.optimizer.step()
        except UserError as error:
            refused = str(error)
        known: dict[str, Any] = {
            "wrapped": type(run.model).__name__,
            "own model": run.replica.model is model and run.model.module is model,
            "sent": run.meter.sent("gradients"),
            "source": run.meter.source("gradients"),
            "refused": refused,
            "steps": run.replica.steps,
        }
    before = state(model)
    optimizer = momentum(model)
    nn.functional.cross_entropy(model(images(comm.rank, 0)[0]), images(comm.rank, 0)[1]).backward()
    optimizer.step()
    known["own step after close"] = any((before[name] != now).any() for name, now in state(model).items())
    with set_up(comm, "ddp", model) as run:
        learn(run, range(1))
    known["after a second run"] = state(model)
    return known
