"""update=bucket and wait=forward: what is under way while forward, backward and scheduler go on."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from bucket_updates import BY_BUCKET, Optimizer, Recorder
from fake_clock import FakeClock
from torch import Tensor, nn
from training import (
    adam,
    batch_of,
    gradients,
    loss_of,
    momentum,
    seeded,
    set_up,
    small_model,
    train,
    weights,
)
from workers import on_threads

from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm, Lost, Pending
from tutti.comm.threads import World
from tutti.engine import Run
from tutti.exchanges.all_reduce import AllReduce
from tutti.exchanges.base import Exchange


@dataclass
class Held(AllReduce):
    """Waits on the lane until it is let go."""

    gate: threading.Event = field(init=False, default_factory=threading.Event)
    only: str = field(init=False, default="")  # the tag of the only bucket that is held

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        if self.only in ("", self.tag):
            assert self.gate.wait(20)
        super().agree(buffer, step, samples)


def in_forward(exchange: Exchange) -> GradientAverage:
    return GradientAverage(exchange, bucket=48, update="bucket", wait="forward")


def held_training(comm: Comm, meanwhile: Callable[[Run, int], None], optimizer: Optimizer) -> list[Tensor]:
    """The weights after every step, where the lane begins only when `meanwhile` is over."""
    held = Held()
    with set_up(comm, in_forward(held), optimizer=optimizer, guard=False) as run:  # which would wait for the lane
        schedule = torch.optim.lr_scheduler.ExponentialLR(run.replica.optimizer, 0.5)
        seen = []
        for step in range(4):
            held.gate.clear()
            before = weights(run.model)
            loss_of(run.model, batch_of(comm.rank, step)).backward()
            run.step()
            schedule.step()
            meanwhile(run, step)
            assert torch.equal(weights(run.model), before), "nothing has happened yet"
            held.gate.set()
            run.state_dict()
            seen.append(weights(run.model))
        return seen


def scheduled_training(comm: Comm, meanwhile: Callable[[Run, int], None], optimizer: Optimizer) -> list[Tensor]:
    with set_up(comm, "gradient-average(bucket=48B)", optimizer=optimizer) as run:
        schedule = torch.optim.lr_scheduler.ExponentialLR(run.replica.optimizer, 0.5)
        seen = []
        for step in range(4):
            loss_of(run.model, batch_of(comm.rank, step)).backward()
            run.step()
            schedule.step()
            meanwhile(run, step)
            seen.append(weights(run.model))
        return seen


def tensor_rate(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1, dtype=torch.float64))


@pytest.mark.parametrize("optimizer", [momentum, adam, tensor_rate])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_late_step_is_that_of_its_time(size: int, set_to_none: bool, optimizer: Optimizer) -> None:
    """The schedule has moved on, the gradients are zeroed and the next samples are set before the lane begins."""

    def meanwhile(run: Run, step: int) -> None:
        run.replica.optimizer.zero_grad(set_to_none)
        run.samples = 1 + (3 * run.rank + step) % 5

    expected = on_threads(size, lambda comm: scheduled_training(comm, meanwhile, optimizer))
    late = on_threads(size, lambda comm: held_training(comm, meanwhile, optimizer))
    for found, each in zip(late, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, each, strict=True))


def test_there_are_no_gradients_behind_a_step_that_waits_in_forward() -> None:
    with set_up(World(1).comm(0), "ddp(update=bucket, wait=forward)") as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        run.step()
        assert gradients(run.model) == [None] * 4
        run.state_dict()
        assert gradients(run.model) == [None] * 4


def test_the_exchange_is_told_the_step_and_samples_of_the_gradient() -> None:
    @dataclass
    class Late(Recorder):
        gate: threading.Event = field(default_factory=threading.Event)

        def agree(self, buffer: Tensor, step: int, samples: float) -> None:
            assert self.gate.wait(20)
            super().agree(buffer, step, samples)

    late = Late()
    algorithm = GradientAverage(late, update="bucket", wait="forward")
    with set_up(World(1).comm(0), algorithm) as run:
        for step in range(3):
            late.gate.clear()
            run.samples = 5 + step
            loss_of(run.model, batch_of(0, step)).backward()
            run.step()
            run.samples = 99
            late.gate.set()
            run.state_dict()
    assert [note[2:] for note in late.notes] == [(0, 5.0), (1, 6.0), (2, 7.0)]


def test_the_weights_are_updated_while_backward_goes_on() -> None:
    model = small_model()
    with set_up(World(1).comm(0), "gradient-average(bucket=0, update=bucket)", model) as run:
        before, seen = model[2].bias.detach().clone(), []

        def look(_: Tensor) -> None:
            run.algorithm._pending[0].wait()
            seen.append(torch.equal(model[2].bias, before))

        model[0].weight.register_hook(look)
        loss_of(run.model, batch_of(0, 0)).backward()
        assert seen == [False]


class Backwards(nn.Module):
    """The layer that is used first comes last, so that its weights are the first to be exchanged."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(3):
            self.later, self.sooner = nn.Linear(3, 2).double(), nn.Linear(3, 3).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.later(self.sooner(inputs).tanh())


def test_forward_waits_layer_by_layer_and_nothing_else_does() -> None:
    held, model, reached = Held(), Backwards(), []
    held.only = "gradients/1"

    def go_on(*_: Any) -> None:
        reached.append(held.gate.is_set())
        held.gate.set()

    with set_up(World(1).comm(0), GradientAverage(held, 96, update="bucket", wait="forward"), model) as run:
        held.gate.set()
        train(run, range(1))
        run.state_dict()
        held.gate.clear()
        train(run, range(1, 2))  # its backward and step do not wait, or this would not return
        model.sooner.register_forward_hook(go_on)
        found = run.model(batch_of(0, 2)[0])
    assert reached == [False], "the layer was through while the other one's weights were under way"
    with set_up(World(1).comm(0), model=Backwards()) as run:
        train(run, range(2))
        assert torch.equal(found, run.model(batch_of(0, 2)[0]))


def test_evaluation_waits_for_everything() -> None:
    held, model = Held(), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    inputs = torch.ones(3, 2, 4, dtype=torch.float64)
    with set_up(World(1).comm(0), in_forward(held), model) as run:
        for _ in range(2):
            held.gate.set()
            run.model(inputs).square().sum().backward()
            held.gate.clear()
            run.step()
        opening = threading.Timer(0.05, held.gate.set)
        opening.start()
        model.eval()
        with torch.no_grad():
            early = run.model(inputs)
            run.state_dict()
            assert torch.equal(early, run.model(inputs))


def test_the_state_waits_for_what_is_under_way() -> None:
    held = Held()
    with set_up(World(1).comm(0), in_forward(held)) as run:
        train(run, range(1))
        opening = threading.Timer(0.05, held.gate.set)
        opening.start()
        state = {name: value.clone() for name, value in run.state_dict()["model"].items()}
        assert held.gate.is_set()
    with set_up(World(1).comm(0)) as run:
        train(run, range(1))
        assert all(torch.equal(state[name], value) for name, value in run.model.state_dict().items())


def test_a_state_is_loaded_behind_what_is_under_way() -> None:
    held = Held()
    with set_up(World(1).comm(0), in_forward(held)) as run:
        start = copy.deepcopy(run.state_dict())
        train(run, range(1))
        threading.Timer(0.05, held.gate.set).start()
        run.load_state_dict(start)
        assert held.gate.is_set()
        assert torch.equal(weights(run.model), weights(small_model()))


def test_everything_is_complete_after_close() -> None:
    held = Held()
    run = set_up(World(1).comm(0), in_forward(held))
    train(run, range(1))
    threading.Timer(0.05, held.gate.set).start()
    run.close()
    with set_up(World(1).comm(0)) as other:
        train(other, range(1))
    assert torch.equal(weights(run.model), weights(other.model))


class Later(Pending):
    """Is done when somebody waits for it: 5 beside the loop, then 2 while it waits."""

    def __init__(self, work: Callable[[], None], run: Run) -> None:
        self._work, self._run = work, run

    def wait(self, deadline: float | None = None) -> Tensor | Lost:
        self._work()
        now = self._run.clock.now()
        self._run.lane.busy.append((now - 5, now + 2))
        self._run.clock.sleep(2.0)
        return torch.empty(0)


@pytest.mark.parametrize("where", ["forward", "backward", "state"])
def test_what_is_waited_for_in_forward_is_exposed(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = FakeClock()
    with set_up(World(1, clock=clock).comm(0), "gradient-average(bucket=0, update=bucket, wait=forward)") as run:
        monkeypatch.setattr(run.lane, "submit", lambda work: Later(work, run))
        train(run, range(1))
        assert run.take_times() == (0.0, 0.0)
        if where == "forward":
            run.model(batch_of(0, 1)[0])
        elif where == "backward":
            run.replica.finish()  # as a worker does that had no forward
        else:
            run.state_dict()
        assert run.take_times() == (20.0, 8.0)
        assert run.take_times() == (0.0, 0.0)


def test_a_schedule_warns_of_nothing() -> None:
    """Warnings are errors here, and a schedule looks whether the optimizer has stepped."""
    for how in BY_BUCKET:
        with set_up(World(1).comm(0), f"ddp({how})") as run:
            schedule = torch.optim.lr_scheduler.StepLR(run.replica.optimizer, 1)
            for step in range(3):
                train(run, range(step, step + 1))
                schedule.step()
