"""What Python does with modules: copies, files, averages and compilers meet our hooks and are not disturbed."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from training import batch_of, loss_of, momentum, set_up, small_model, train, train_alone, weights
from workers import on_threads

from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.engine import distribute
from tutti.errors import UserError

SPECS = ["ddp", "ddp(update=bucket)", "model-average(bucket=0)", "d-psgd", "relay-sgd", "d-psgd-overlap"]


@pytest.mark.parametrize("spec", SPECS)
def test_a_copy_is_a_plain_model(spec: str) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm, spec) as run:
            model = run.replica.model
            for step in range(3):
                train(run, range(step, step + 1))
                other = copy.deepcopy(model)
                assert torch.equal(weights(other), weights(model))
                before = weights(model)
                train_alone(other, momentum(other), [batch_of(0, 9)])
                assert torch.equal(weights(model), before)
                assert not torch.equal(weights(other), before)

    on_threads(2, work)


def test_a_copy_between_backward_and_step() -> None:
    with set_up(World(1).comm(0), "ddp") as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        other = copy.deepcopy(run.model)
        run.step()
        assert not torch.equal(weights(other), weights(run.model))


def test_a_moving_average_of_the_weights() -> None:
    with set_up(World(1).comm(0), "ddp") as run:
        average = AveragedModel(run.model)
        seen = []
        for step in range(3):
            train(run, range(step, step + 1))
            average.update_parameters(run.model)
            seen.append(weights(run.model))
        torch.testing.assert_close(weights(average), torch.stack(seen).mean(0))


def test_a_model_saved_as_a_whole_can_be_loaded_without_tutti() -> None:
    with set_up(World(1).comm(0), "ddp", nn.Sequential(nn.Linear(3, 2).double())) as run:
        train(run, range(2))
        file = io.BytesIO()
        torch.save(run.model, file)
        program = (
            "import io, sys, torch\n"
            "sys.modules['tutti'] = None\n"
            "model = torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=False)\n"
            "model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()\n"
            "print([float(x) for p in model.parameters() for x in p.detach().reshape(-1)])"
        )
        ended = subprocess.run([sys.executable, "-c", program], input=file.getvalue(), capture_output=True, timeout=60)
        assert ended.stdout.decode().strip() == str(weights(run.model).tolist()), ended.stderr.decode()


def test_with_steps_under_way_a_copy_is_refused_and_a_state_waits() -> None:
    def work(comm: Comm) -> torch.Tensor:
        with set_up(comm, "ddp(bucket=0, update=bucket, wait=forward)") as run:
            train(run, range(2))
            with pytest.raises(UserError, match=r"under way \(wait=forward\) cannot be copied or saved as a whole"):
                copy.deepcopy(run.model)
            state = run.replica.model.state_dict()
            copy.deepcopy(run.model)  # nothing is under way any more
            return torch.cat([state[name].reshape(-1) for name, _ in run.replica.model.named_parameters()]).clone()

    def plain(comm: Comm) -> torch.Tensor:
        with set_up(comm, "ddp(bucket=0)") as run:
            train(run, range(2))
            return weights(run.model)

    for found, expected in zip(on_threads(2, work), on_threads(2, plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("part", [0, 2])
def test_the_state_of_a_part_waits_too(part: int) -> None:
    """Held up by a slow exchange, it would be that of the step before."""
    with set_up(World(1).comm(0), "ddp(bucket=0, update=bucket, wait=forward)") as run:
        train(run, range(2))
        model: Any = run.replica.model
        found = {name: value.clone() for name, value in model[part].state_dict().items()}
        run.state_dict()
        assert all(torch.equal(value, model[part].state_dict()[name]) for name, value in found.items())
        assert not run.algorithm._pending


@pytest.mark.parametrize("spec", ["ddp", "ddp(update=bucket)", "model-average", "d-psgd"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_model_trains_alike_and_without_a_warning(spec: str, when: str) -> None:
    torch._dynamo.reset()
    model, plain = small_model(), small_model()
    optimizer = momentum(model)
    target: Any = torch.compile(model, backend="eager") if when == "before" else model
    with distribute(target, optimizer, spec, comm=World(1).comm(0)) as run:
        compiled: Any = target if when == "before" else torch.compile(model, backend="eager")
        for step in range(3):
            optimizer.zero_grad()
            loss_of(compiled, batch_of(0, step)).backward()
            run.step()
        model.state_dict()
        found = weights(model)
    train_alone(plain, momentum(plain), [batch_of(0, step) for step in range(3)])
    torch.testing.assert_close(found, weights(plain), rtol=1e-10, atol=0)


def test_a_compiled_model_would_not_wait_for_its_weights() -> None:
    torch._dynamo.reset()
    model = small_model()
    run = distribute(model, momentum(model), "ddp(update=bucket, wait=forward)", comm=World(1).comm(0))
    with run, pytest.raises(UserError, match="which a compiled model runs past; use wait=backward"):
        torch.compile(model, backend="eager")(batch_of(0, 0)[0])
