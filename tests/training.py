"""Models, data and loops for the tests of training; in float64, where results can be compared closely."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Comm
from tutti.engine import Run, distribute

torch.set_num_threads(1)

Batch = tuple[Tensor, Tensor]
_drawing = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Weights drawn in here depend on the seed only, although all threads share torch's random state."""
    with _drawing, torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def small_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Two layers, 3 -> 4 -> 2; the last one's gradients come first."""
    with seeded(seed):
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def normed_model(seed: int = 0) -> nn.Sequential:
    """With batch normalisation: buffers that follow the data."""
    with seeded(seed):
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()


class Forked(nn.Module):
    """Worker by worker another branch is used; one branch by nobody."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(5):
            self.trunk, self.even, self.odd, self.nobody = (nn.Linear(3, 3).double() for _ in range(4))
        self.branch = "even"

    def forward(self, inputs: Tensor) -> Tensor:
        branch = {"even": self.even, "odd": self.odd}[self.branch]
        return branch(self.trunk(inputs).tanh())[:, :2]


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(7):
            self.first, self.second = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(self.first(inputs).tanh())[:, :2]


def batch_of(worker: int, step: int, samples: int = 4, dtype: torch.dtype = torch.float64) -> Batch:
    """What this worker sees at this step."""
    generator = torch.Generator().manual_seed(1000 * worker + step)
    inputs = torch.randn(samples, 3, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), inputs[:, :2].sin().to(dtype)


def joint_batch(workers: int, step: int, samples: int = 4) -> Batch:
    """What all workers together see at this step."""
    parts = [batch_of(worker, step, samples) for worker in range(workers)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def momentum(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def set_up(
    comm: Comm,
    algorithm: str | Algorithm = "ddp",
    model: nn.Module | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = momentum,
    guard: bool | int = True,
) -> Run:
    model = small_model() if model is None else model
    return distribute(model, optimizer(model), algorithm, comm=comm, guard=guard)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


def train(run: Run, steps: range) -> None:
    """The loop a user writes."""
    for step in steps:
        run.replica.optimizer.zero_grad()
        loss_of(run.model, batch_of(run.rank, step)).backward()
        run.step()


def train_alone(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch], step: Callable[[], Any] | None = None
) -> nn.Module:
    """The same loop without us: the reference."""
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        (step or optimizer.step)()
    return model


def weights(model: nn.Module) -> Tensor:
    """All parameters, one behind another, as they are now."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]
