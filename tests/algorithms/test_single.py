"""One worker on the whole batch: bit by bit what the same loop gives without us."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from training import adam, batch_of, momentum, normed_model, set_up, train, train_alone

from tutti.comm.threads import World


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_ordinary_training(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    model, plain = normed_model(), normed_model()
    places = [p.data_ptr() for p in model.parameters()]
    with set_up(World(1).comm(0), "single", model, optimizer) as run:
        train(run, range(4))
        assert run.meter.sent() == 0
        assert run.take_times() == (0.0, 0.0)
    train_alone(plain, optimizer(plain), [batch_of(0, step) for step in range(4)])
    for (name, ours), theirs in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert [p.data_ptr() for p in model.parameters()] == places, "nothing is moved into buckets"


def test_accumulating() -> None:
    model, plain = normed_model(), normed_model()
    with set_up(World(1).comm(0), "single", model) as run:
        with run.accumulate():
            run.model(batch_of(0, 0)[0]).sum().backward()
        run.model(batch_of(0, 1)[0]).sum().backward()
        run.step()
    optimizer = momentum(plain)
    for step in range(2):
        plain(batch_of(0, step)[0]).sum().backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
