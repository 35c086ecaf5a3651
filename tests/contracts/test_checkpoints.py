"""What every algorithm promises of checkpoints: a run that is loaded goes on with the same bits.

It finds members and presets by itself. Both runs go over the same batches; between saving and loading everything is
made anew, with other starting weights, other random states and other objects.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training import batch_of, loss_of, normed_model, set_up, train, weights
from workers import on_threads

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Comm
from tutti.engine import Run
from tutti.launch import LaunchOptions, launch
from tutti.presets import PRESETS
from tutti.spec import member, names, parse

_MEMBERS = [name for name in names("algorithms") if not member(Algorithm, name).needs_process_group]
_MORE = [
    "gradient-average(bucket=80B, update=bucket, wait=forward)",
    "model-average(gossip(random-pairing), bucket=80B)",
    "switch(2, ddp, d-psgd)",
    "switch(5, relay-sgd, ddp)",
]
DETERMINISTIC = [spec for spec in [*_MEMBERS, *PRESETS, *_MORE] if parse(spec, Algorithm).deterministic]
OVER_PROCESSES = ("ddp", "relay-sgd", "d-psgd-overlap", "sgp", "gradient-tracking", "torch-ddp")


def fits(spec: str, size: int) -> bool:
    return size == 1 or not parse(spec, Algorithm).one_worker


def train_on(run: Run, schedule: torch.optim.lr_scheduler.LRScheduler, steps: range) -> list[float]:
    """The loop of a user whose augmentation uses all the random states there are."""
    losses = []
    for step in steps:
        inputs, targets = batch_of(run.rank, step)
        run.replica.optimizer.zero_grad()
        loss = loss_of(run.model, (inputs + inputs * noise(run), targets))
        loss.backward()
        run.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


def noise(run: Run) -> float:
    """Drawn from all global generators, which threads share: so only where a worker has a process for itself."""
    alone = run.size == 1 or run.comm.wire != "threads"
    return 0.01 * (random.random() + float(np.random.rand()) + float(torch.rand(()))) if alone else 0.0


def set_all(comm: Comm, spec: str, seed: int) -> tuple[Run, torch.optim.lr_scheduler.LRScheduler]:
    if comm.wire != "threads" or comm.size == 1:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
    run = set_up(comm, spec, normed_model(seed))
    return run, torch.optim.lr_scheduler.StepLR(run.replica.optimizer, 2, 0.5)


def finish(run: Run) -> tuple[Tensor, list[Tensor]]:
    run.algorithm.drain()
    return weights(run.replica.model), [buffer.clone() for buffer in run.replica.model.buffers()]


def uninterrupted(comm: Comm, spec: str, folder: str, seed: int) -> Any:
    run, schedule = set_all(comm, spec, seed)
    with run:
        losses = train_on(run, schedule, range(3))
        run.save(folder, schedule=schedule, epoch=3)
        losses += train_on(run, schedule, range(3, 7))
        return losses, *finish(run)


def go_on(comm: Comm, spec: str, folder: str, seed: int) -> Any:
    run, schedule = set_all(comm, spec, seed + 100 * (comm.rank + 1))
    with run, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert run.load(folder, schedule=schedule) == {"epoch": 3}
        losses = train_on(run, schedule, range(3, 7))
        return losses, *finish(run)


def same(one: Any, other: Any) -> bool:
    (losses, weight, buffers), (again, weight_again, buffers_again) = one, other
    equal = all(torch.equal(a, b) for a, b in zip(buffers, buffers_again, strict=True))
    return losses[3:] == again and torch.equal(weight, weight_again) and equal


def close(one: Any, other: Any) -> bool:
    """DDP cuts its buckets anew behind its first step, which changes the order in which three workers are summed up."""
    return np.allclose(one[0][3:], other[0], rtol=1e-12) and torch.allclose(one[1], other[1], rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("spec", DETERMINISTIC)
def test_a_run_that_is_loaded_goes_on_with_the_same_bits(spec: str, size: int, tmp_path: Path) -> None:
    if not fits(spec, size):
        return  # it is refused on several workers
    whole = on_threads(size, lambda comm: uninterrupted(comm, spec, str(tmp_path), 1))
    rest = on_threads(size, lambda comm: go_on(comm, spec, str(tmp_path), 1))
    assert all(map(same, whole, rest))
    assert [each.name for each in tmp_path.iterdir()] == ["step-00000003"]


def save_several(comm: Comm, _: Any, specs: tuple[str, ...], folder: str) -> None:
    for spec in specs:
        torch.save(uninterrupted(comm, spec, f"{folder}/{spec}", 1), f"{folder}/{spec}-{comm.rank}.pt")


def go_on_with_several(comm: Comm, _: Any, specs: tuple[str, ...], folder: str) -> list[bool]:
    """Whether every worker went on with the same bits."""
    found = []
    for spec in specs:
        whole = torch.load(f"{folder}/{spec}-{comm.rank}.pt")
        rest = go_on(comm, spec, f"{folder}/{spec}", 1)
        compare = close if spec == "torch-ddp" else same
        found.append(comm.gather_bytes(bytes([compare(whole, rest)])))
    return [all(row == b"\1" for row in rows) for rows in found]


def test_other_processes_go_on_with_the_same_bits_and_their_own_random_states(tmp_path: Path) -> None:
    args = OVER_PROCESSES, str(tmp_path)
    launch(save_several, args, LaunchOptions(3), lambda _: None)
    found = launch(go_on_with_several, args, LaunchOptions(3), lambda _: None)
    assert dict(zip(OVER_PROCESSES, found, strict=True)) == dict.fromkeys(OVER_PROCESSES, True)


@pytest.mark.parametrize("spec", [spec for spec in DETERMINISTIC if fits(spec, 3)])
def test_every_algorithm_takes_over_the_weights_of_another(spec: str, tmp_path: Path) -> None:
    """From d-psgd on two workers: three begin with the mean of those, whatever they do next."""

    def leave(comm: Comm) -> Tensor:
        with set_up(comm, "d-psgd") as run:
            train(run, range(3))
            run.save(tmp_path)
            run.algorithm.drain()
            return weights(run.replica.model)

    def take_over(comm: Comm) -> Tensor:
        with set_up(comm, spec) as run:
            run.load(tmp_path)
            found = weights(run.replica.model)
            assert run.replica.steps == 3
            train(run, range(3, 6))
            assert run.algorithm.equal or comm.size > 1
            return found

    left = on_threads(2, leave)
    with pytest.warns(UserWarning, match="the mean of the workers' weights and optimizer states"):
        taken = on_threads(3, take_over)
    expected = torch.stack(left).mean(0)
    assert all(torch.allclose(each, expected, rtol=1e-15, atol=1e-16) for each in taken)
    assert all(torch.equal(each, taken[0]) for each in taken)
