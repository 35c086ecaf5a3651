"""A loop in which workers have different numbers of batches of different sizes; importable, for processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from training import Batch, batch_of, loss_of, momentum, normed_model, set_up, small_model, weights

from tutti.comm.base import Comm
from tutti.engine import Run
from tutti.launch import Report

COUNTS = (3, 6, 0, 4, 6)  # batches of worker 0, 1, ...


def samples_of(rank: int, step: int) -> int:
    return 2 + (rank + step) % 3


def batches_of(rank: int, counts: tuple[int, ...] = COUNTS) -> list[Batch]:
    return [batch_of(rank, step, samples=samples_of(rank, step)) for step in range(counts[rank])]


def joint_batches(size: int, counts: tuple[int, ...] = COUNTS) -> list[Batch]:
    """What those who still train see together, step by step."""
    rows = [batches_of(rank, counts) for rank in range(size)]
    steps = [[row[step] for row in rows if step < len(row)] for step in range(max(map(len, rows)))]
    return [(torch.cat([x for x, _ in step]), torch.cat([y for _, y in step])) for step in steps]


def train_joined(run: Run, after_backward: Callable[[], Any] = lambda: None, epochs: int = 1) -> list[int]:
    """The loop a user writes; how many steps this worker missed in each epoch."""
    missed = []
    for _ in range(epochs):
        with run.join() as joined:
            for batch in batches_of(run.rank):
                run.samples = len(batch[0])
                loss_of(run.model, batch).backward()
                after_backward()
                run.step()
                run.replica.optimizer.zero_grad()
        missed.append(joined.missed)
    return missed


def state_of(run: Run) -> list[Tensor]:
    """Weights, buffers and what the optimizer remembers."""
    run.algorithm.drain()
    optimizer = run.replica.optimizer
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = [value for p in parameters for _, value in sorted(optimizer.state.get(p, {}).items())]
    tensors = [value for value in state if isinstance(value, Tensor)]
    model: nn.Module = run.replica.model
    return [weights(model), *(t.detach().clone() for t in (*model.buffers(), *tensors))]


def train_joined_everywhere(comm: Comm, _: Report, spec: str) -> list[bytes]:
    """Two epochs; all workers' weights, momentum and missed steps."""
    with set_up(comm, spec, small_model()) as run:
        missed = train_joined(run, epochs=2)
        found = state_of(run)
        flat = torch.cat([t.reshape(-1).double() for t in [*found, torch.tensor(missed)]])
    return comm.gather_bytes(flat.numpy().tobytes())


def leave_the_block(comm: Comm, _: Report) -> None:
    """One worker raises inside the block."""
    with set_up(comm, "ddp", normed_model(), momentum) as run, run.join():
        if comm.rank == 1:
            raise LookupError("the dog ate the batch")


def share(rank: int, step: int) -> int:
    """How many samples a worker has at this step: 0, 1, 2 or 3, and never none for all."""
    return (rank + step) % 4 if rank else 1 + step % 3


def train_shares(run: Run, steps: int = 4) -> None:
    """A worker without samples has an empty batch, whose mean loss and gradient are NaN."""
    for step in range(steps):
        run.replica.optimizer.zero_grad()
        run.samples = share(run.rank, step)
        loss = loss_of(run.model, batch_of(run.rank, step, samples=share(run.rank, step)))
        assert bool(loss.isnan()) == (share(run.rank, step) == 0)
        loss.backward()
        run.step()


def train_shares_everywhere(comm: Comm, _: Report, spec: str) -> list[bytes]:
    """All workers' weights."""
    with set_up(comm, spec) as run:
        train_shares(run)
        return comm.gather_bytes(weights(run.replica.model).numpy().tobytes())
