"""What a pattern sees: its worker's number, its data, and `distribute`, which sets up one of the methods.

What `distribute` returns has the same shape for all of them: `model` (to be called), `backward(loss)`, `step()`,
`accumulate()`, `mean()`, `samples`, `join()`, `save` and `load`. For Tutti and for torch's DDP each of these is one
line of what a user would write; for the references it is the method itself (oracle.py).
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import tutti
from loop_patterns.oracle import Oracle

TUTTI = ("ddp", "allreduce-model", "d-psgd", "relay-sgd")
METHODS = ("torch-ddp", *TUTTI)
ORACLES = {
    "torch-ddp": "gradient",
    "ddp": "gradient",
    "allreduce-model": "model",
    "d-psgd": "gossip",
    "relay-sgd": "relay",
}
PATIENCE = 8.0  # seconds that Tutti waits for a silent worker in here

Optimizer = torch.optim.Optimizer
Result = dict[str, Any]


class TorchDdp:
    """torch's own, as its tutorial writes it."""

    def __init__(self, model: nn.Module, optimizers: list[Optimizer], group: Any, **options: Any) -> None:
        self.model = nn.parallel.DistributedDataParallel(model, process_group=group, **options)
        self.module, self.optimizers, self.group = model, optimizers, group
        self.samples = 1.0  # DDP does not know of it

    def backward(self, loss: Tensor, **options: Any) -> None:
        loss.backward(**options)

    def step(self, scaler: Any = None, optimizer: Any = None, closure: Any = None) -> None:
        for each in self.optimizers if optimizer is None else [optimizer]:
            if scaler is not None:
                scaler.step(each)
            elif closure is not None:
                each.step(closure)
            else:
                each.step()

    def accumulate(self) -> Any:
        return self.model.no_sync()

    def mean(self, value: float) -> float:
        total = torch.tensor(float(value), dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return float(total) / dist.get_world_size(self.group)

    def join(self) -> Any:
        return self.model.join()

    def save(self, folder: str) -> None:
        if dist.get_rank() == 0:
            state = {"model": self.module.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers]}
            torch.save(state, os.path.join(folder, "ddp.pt"))
        dist.barrier()

    def load(self, folder: str, source: Any) -> None:
        state = torch.load(os.path.join(folder, "ddp.pt"), weights_only=True)
        self.module.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def close(self) -> None:
        pass


class Tutti:
    """A run of ours, as the README writes it."""

    def __init__(self, run: tutti.Run) -> None:
        self.run, self.model = run, run.model

    def backward(self, loss: Tensor, **options: Any) -> None:
        loss.backward(**options)

    def step(self, scaler: Any = None, optimizer: Any = None, closure: Any = None) -> None:
        if optimizer is not None:
            self.run.step(optimizer=optimizer)
        elif closure is not None:
            self.run.step(closure)
        elif scaler is not None:
            self.run.step(scaler)
        else:
            self.run.step()

    @property
    def samples(self) -> float:
        return self.run.samples

    @samples.setter
    def samples(self, count: float) -> None:
        self.run.samples = count

    def accumulate(self) -> AbstractContextManager[None]:
        return self.run.accumulate()

    def mean(self, value: float) -> float:
        return float(self.run.mean(value))

    def join(self) -> Any:
        return self.run.join()

    def save(self, folder: str) -> None:
        self.run.save(os.path.join(folder, "tutti"))

    def load(self, folder: str, source: Any) -> None:
        self.run.load(os.path.join(folder, "tutti"))

    def close(self) -> None:
        self.run.close()


@dataclass
class Session:
    """One worker of one pattern under one method."""

    method: str  # one of METHODS, or a reference: "oracle gradient", "oracle relay", ...
    rank: int
    size: int
    folder: str  # shared by all workers of this session, empty at the beginning
    variant: str = ""  # of the reference, where more than one result is right
    handles: list[Any] = field(default_factory=list)

    @property
    def ours(self) -> bool:
        return self.method in TUTTI

    @property
    def oracle(self) -> bool:
        return self.method.startswith("oracle")

    @property
    def averages_gradients(self) -> bool:
        return self.method in ("torch-ddp", "ddp", "oracle gradient")

    def distribute(
        self, model: nn.Module, optimizer: Any, options: str = "", group: Any = None, ddp: Any = None, **more: Any
    ) -> Any:
        """`options` go into Tutti's spec, `ddp` are DDP's own."""
        optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        handle: Any
        if self.oracle:
            handle = Oracle(self.method.split()[1], model, optimizers, self.variant, group)
        elif self.method == "torch-ddp":
            handle = TorchDdp(model, optimizers, group, **(ddp or {}))
        else:
            if group is not None:
                more["group"] = group
            spec = f"{self.method}({options})" if options else self.method
            handle = Tutti(tutti.distribute(model, optimizer, spec, timeout=PATIENCE, **more))
        self.handles.append(handle)
        return handle

    def batch(self, step: int, samples: int = 4, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """What this worker sees at this step."""
        drawn = torch.Generator().manual_seed(1000 * self.rank + step)
        inputs = torch.randn(samples, 3, generator=drawn, dtype=torch.float64)
        return inputs.to(dtype), inputs[:, :2].sin().to(dtype)

    def loss(self, model: Any, step: int, samples: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
        inputs, targets = self.batch(step, samples, dtype)
        return functional.mse_loss(model(inputs).to(dtype), targets)


def net(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Two layers, 3 -> 4 -> 2; drawn from a seed without moving the global random state."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def seeded(seed: int, *modules: Any) -> list[nn.Module]:
    """Modules built by these functions, from a seed, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [make().double() for make in modules]


def sgd(model: nn.Module, lr: float = 0.1, momentum: float = 0.9) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def learn(s: Session, t: Any, optimizer: Optimizer, steps: range, model: Any = None) -> None:
    """The loop of the README."""
    for step in steps:
        optimizer.zero_grad()
        t.backward(s.loss(model if model is not None else t.model, step))
        t.step()


def weights(*models: nn.Module, **more: Any) -> Result:
    """What a pattern returns: the weights at its end, and whatever else it has seen."""
    return {"weights": [p.detach().clone() for model in models for p in model.parameters()], **more}
