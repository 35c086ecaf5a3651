"""When and where gradients are exchanged and weights are updated; that the default's result is right is said in
contracts/test_algorithms.py, and that the others give the same bits is said here.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from torch import Tensor, nn
from training import (
    Forked,
    Tied,
    adam,
    batch_of,
    gradients,
    loss_of,
    momentum,
    normed_model,
    seeded,
    set_up,
    small_model,
    train,
    weights,
)
from workers import SIZES, on_threads

from tutti.algorithms import gradient_average
from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm, Lost, PeerLost, Pending
from tutti.comm.threads import World
from tutti.engine import Run
from tutti.errors import UserError
from tutti.exchanges.all_reduce import AllReduce
from tutti.exchanges.base import Exchange
from tutti.tuning import Tuner

BY_BUCKET = ("update=bucket", "update=bucket, wait=forward")


@dataclass
class Recorder(Exchange):
    """Agrees on what is there, and notes who asked when."""

    notes: list[tuple[Any, ...]] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        on_lane = threading.current_thread().name.startswith("tutti-lane")
        self.notes.append((self.tag, on_lane, step, samples))
        self.began.set()

    def state_dict(self) -> dict[str, Any]:
        return {"of": self.tag}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.notes.append(("loaded", state["of"]))


def test_with_overlap_the_first_bucket_is_exchanged_while_backward_goes_on() -> None:
    recorder, model = Recorder(), small_model()
    with set_up(World(1).comm(0), GradientAverage(recorder, bucket=0), model) as run:
        seen = []
        model[0].weight.register_hook(lambda _: seen.append(recorder.began.wait(20)))
        train(run, range(1))
        assert seen == [True]
        assert [note[:2] for note in recorder.notes] == [(f"gradients/{index}", True) for index in range(4)]


def test_without_overlap_everything_is_exchanged_after_backward_by_the_caller() -> None:
    recorder, model = Recorder(), small_model()
    with set_up(World(1).comm(0), GradientAverage(recorder, bucket=0, overlap=False), model) as run:
        seen = []
        model[0].weight.register_hook(lambda _: seen.append(recorder.began.is_set()))
        train(run, range(1))
        assert seen == [False]
        assert [note[:2] for note in recorder.notes] == [(f"gradients/{index}", False) for index in range(4)]


def test_the_exchange_is_told_step_and_samples() -> None:
    recorder = Recorder()
    with set_up(World(1).comm(0), GradientAverage(recorder)) as run:
        for step in range(3):
            run.samples = 5 + step
            train(run, range(1))
    assert [note[2:] for note in recorder.notes] == [(0, 5.0), (1, 6.0), (2, 7.0)]


def test_every_exchange_gets_its_own_state_back() -> None:
    recorder = Recorder()
    with set_up(World(1).comm(0), GradientAverage(recorder, bucket=0)) as run:
        state = run.state_dict()
        assert state["algorithm"]["exchanges"] == [{"of": f"gradients/{index}"} for index in range(4)]
        run.load_state_dict(state)
    assert recorder.notes == [("loaded", f"gradients/{index}") for index in range(4)]


class Broken(Recorder):
    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        super().agree(buffer, step, samples)
        if len(self.notes) == 2:
            raise KeyError("the exchange's own error")


@pytest.mark.parametrize("overlap", [True, False])
def test_an_error_in_the_exchange_comes_out_of_backward(overlap: bool) -> None:
    algorithm = GradientAverage(Broken(), bucket=0, overlap=overlap)
    with set_up(World(1).comm(0), algorithm) as run:
        with pytest.raises(KeyError, match="the exchange's own error"):
            loss_of(run.model, batch_of(0, 0)).backward()
        run.replica.optimizer.zero_grad()
        train(run, range(1))


def test_half_precision_counts_workers_not_samples() -> None:
    def work(comm: Comm, combine: str) -> list[Tensor | None]:
        model = small_model(dtype=torch.bfloat16)
        with set_up(comm, f"gradient-average(all-reduce(ring, {combine}))", model) as run:
            loss_of(run.model, batch_of(comm.rank, 0, dtype=torch.bfloat16)).backward()
            return gradients(run.model)

    with pytest.raises(UserError, match=r"'weighted-mean' counts samples .* torch.bfloat16 is too coarse; use mean"):
        on_threads(2, lambda comm: work(comm, "weighted-mean"))
    one, other = on_threads(2, lambda comm: work(comm, "mean"))
    assert all(torch.equal(a, b) and a.dtype is torch.bfloat16 for a, b in zip(one, other, strict=True))


def test_the_first_bucket_is_small() -> None:
    with set_up(World(1).comm(0), model=nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))) as run:
        sizes = [bucket.weights.nbytes for bucket in run.replica.buckets]
    assert sizes[0] <= 2**20 < sizes[1] <= 4 * 2**20


# --- update=bucket and wait=forward: the same weights ----------------------------------------------------------------

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


def decayed_adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)


def two_rates(model: nn.Module) -> torch.optim.SGD:
    first, *others = model.children()
    groups = [{"params": first.parameters()}, {"params": [p for m in others for p in m.parameters()], "lr": 0.02}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)


def plain_step(run: Run, step: int) -> None:
    run.replica.optimizer.zero_grad()
    loss_of(run.model, batch_of(run.rank, step)).backward()
    run.step()


def follow(
    comm: Comm,
    how: str,
    model: Callable[[], nn.Module] = small_model,
    optimizer: Optimizer = momentum,
    step: Callable[[Run, int], None] = plain_step,
    asking: bool = True,
) -> list[Tensor]:
    """The weights after every step, or only at the end: asking for them waits for what is under way."""
    with set_up(comm, f"gradient-average(bucket=48B, {how})", model(), optimizer) as run:
        seen = []
        for number in range(3):
            step(run, number)
            if asking:
                run.state_dict()
                seen.append(weights(run.replica.model))
    return [*seen, weights(run.replica.model)]


@cache
def follow_default(size: int, **options: Any) -> list[list[Tensor]]:
    return on_threads(size, lambda comm: follow(comm, "update=whole", **options))


def assert_same_as_default(size: int, how: str, **options: Any) -> None:
    """Step by step, and at the end also when nobody has asked in between."""
    expected = follow_default(size, **options)
    followed = on_threads(size, lambda comm: follow(comm, how, **options))
    at_the_end = on_threads(size, lambda comm: follow(comm, how, **options, asking=False))
    for found, (last,), each in zip(followed, at_the_end, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, each, strict=True))
        assert torch.equal(last, each[-1])


@pytest.mark.parametrize("how", BY_BUCKET)
@pytest.mark.parametrize("optimizer", [momentum, decayed_adam])
@pytest.mark.parametrize("size", SIZES)
def test_it_steps_as_the_default_does(size: int, optimizer: Optimizer, how: str) -> None:
    assert_same_as_default(size, how, optimizer=optimizer)


@pytest.mark.parametrize("how", BY_BUCKET)
def test_it_steps_as_the_default_does_with_groups(how: str) -> None:
    assert_same_as_default(3, how, optimizer=two_rates)


@pytest.mark.parametrize("how", BY_BUCKET)
@pytest.mark.parametrize("model", [Tied, normed_model])
def test_it_steps_as_the_default_does_with_shared_weights_and_with_buffers(
    model: Callable[[], nn.Module], how: str
) -> None:
    assert_same_as_default(3, how, model=model)


def forked_step(run: Run, step: int) -> None:
    run.replica.model.branch = ("even", "odd")[(run.rank + step) % 2]
    plain_step(run, step)


def same_fork_step(run: Run, step: int) -> None:
    run.replica.model.branch = ("even", "odd")[step % 2]
    plain_step(run, step)


@pytest.mark.parametrize("how", BY_BUCKET)
@pytest.mark.parametrize("step", [forked_step, same_fork_step])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_parameters_that_some_or_none_of_the_workers_use(size: int, step: Callable[..., None], how: str) -> None:
    """The weight decay would move a weight whose gradient is zero, and not one that has none."""
    assert_same_as_default(size, how, model=Forked, step=step)


@pytest.mark.parametrize("how", BY_BUCKET)
def test_a_worker_without_a_backward(how: str) -> None:
    def step(run: Run, number: int) -> None:
        run.replica.optimizer.zero_grad()
        if (run.rank + number) % 3:
            loss_of(run.model, batch_of(run.rank, number)).backward()
        run.step()

    assert_same_as_default(3, how, step=step)


@pytest.mark.parametrize("how", BY_BUCKET)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_add_up_before_a_step(how: str, set_to_none: bool) -> None:
    def step(run: Run, number: int) -> None:
        with run.accumulate():
            for part in range(2):
                loss_of(run.model, batch_of(run.rank, 10 * number + part)).backward()
        loss_of(run.model, batch_of(run.rank, 10 * number + 2)).backward()
        run.step()
        run.replica.optimizer.zero_grad(set_to_none)

    assert_same_as_default(2, how, step=step)


@pytest.mark.parametrize("how", BY_BUCKET)
def test_samples_that_change_from_step_to_step(how: str) -> None:
    def step(run: Run, number: int) -> None:
        run.samples = 1 + (3 * run.rank + number) % 5
        plain_step(run, number)

    assert_same_as_default(3, how, step=step)


@pytest.mark.parametrize("how", BY_BUCKET)
def test_parameters_beside_the_model(how: str) -> None:
    """What only the optimizer knows is complete behind backward, since anybody may use it; so are the gradients of what
    the optimizer does not know.
    """

    def work(comm: Comm, how: str) -> tuple[Tensor, list[Tensor | None]]:
        model, prompt = small_model(), nn.Parameter(torch.zeros(3, dtype=torch.float64))
        optimizer = torch.optim.SGD([prompt, *model[2].parameters()], lr=0.1, momentum=0.9)
        with set_up(comm, f"gradient-average(bucket=16B, {how})", model, lambda _: optimizer) as run:
            for step in range(3):
                inputs, targets = batch_of(comm.rank, step)
                loss_of(run.model, (inputs + prompt, targets)).backward()
                run.step()
                run.replica.optimizer.zero_grad()
        return torch.cat([prompt.detach(), weights(model)]), gradients(model[0])

    default = on_threads(2, lambda comm: work(comm, "update=whole"))
    for (found, unknown), (expected, theirs) in zip(on_threads(2, lambda c: work(c, how)), default, strict=True):
        assert torch.equal(found, expected)
        assert all(torch.equal(a, b) for a, b in zip(unknown, theirs, strict=True))


# --- update=bucket and wait=forward: what is under way ---------------------------------------------------------------


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
    with set_up(comm, in_forward(held), optimizer=optimizer) as run:
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


# --- update=bucket and wait=forward: what is refused, and what goes wrong --------------------------------------------


@pytest.mark.parametrize("how", BY_BUCKET)
def test_a_scaler_is_refused_in_a_sentence(how: str) -> None:
    with set_up(World(1).comm(0), f"ddp({how})") as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        with pytest.raises(UserError, match=r"update=bucket steps before a GradScaler .*; use update=whole$"):
            run.step(torch.amp.GradScaler("cpu"))


def test_a_scaler_that_is_switched_off_is_none() -> None:
    with set_up(World(1).comm(0), "ddp(update=bucket)") as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        run.step(torch.amp.GradScaler("cpu", enabled=False))


class Foreign(torch.optim.SGD):
    """Not torch's own: it may look at all parameters at once."""


@pytest.mark.parametrize("how", BY_BUCKET)
def test_an_optimizer_from_elsewhere_is_refused_in_a_sentence(how: str) -> None:
    with pytest.raises(UserError, match=r"update=bucket steps on some .* and Foreign is none of torch's optimizers"):
        set_up(World(1).comm(0), f"ddp({how})", optimizer=lambda m: Foreign(m.parameters(), lr=0.1))
    with set_up(World(1).comm(0), "ddp", optimizer=lambda m: Foreign(m.parameters(), lr=0.1)) as run:
        train(run, range(1))


@pytest.mark.parametrize("how", BY_BUCKET)
def test_a_second_backward_in_one_step_is_refused_in_a_sentence(how: str) -> None:
    with set_up(World(1).comm(0), f"ddp({how})") as run:
        train(run, range(1))
        loss_of(run.model, batch_of(0, 1)).backward()
        with pytest.raises(UserError, match=r"its step in the backward before this one.* run.accumulate\(\)"):
            loss_of(run.model, batch_of(0, 1)).backward()
        run.step()
        train(run, range(2, 3))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"wait": "forward"}, "wait=forward needs update=bucket and overlap"),
        ({"wait": "forward", "update": "bucket", "overlap": False}, "wait=forward needs update=bucket and overlap"),
        ({"update": "bucket", "overlap": False}, "update=bucket needs overlap"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GradientAverage(**fields)


def survive(work: Callable[[Run], None]) -> Run:
    """`work` on the run of a worker whose only peer has gone while the exchange of a step was under way."""
    world = World(2, timeout=20.0)
    runs: list[Run] = []

    def victim() -> None:
        run = set_up(world.comm(1), "ddp(update=bucket, wait=forward)")
        train(run, range(1))
        run.state_dict()
        world.abort(1)
        run.close()

    def survivor() -> None:
        run = set_up(world.comm(0), "ddp(update=bucket, wait=forward)")
        runs.append(run)
        train(run, range(2))  # nobody waits for the second step's exchange

    threads = [threading.Thread(target=function) for function in (survivor, victim)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    (run,) = runs
    try:
        work(run)
    finally:
        with suppress(PeerLost):
            run.close()
    return run


def lanes() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("tutti-lane")}


def test_an_error_on_the_lane_comes_out_of_the_next_forward_and_stays() -> None:
    def work(run: Run) -> None:
        for _ in range(2):
            with pytest.raises(PeerLost, match="worker 1 died"):
                run.model(batch_of(0, 2)[0])
        with pytest.raises(PeerLost):
            run.state_dict()

    survive(work)


def test_an_error_on_the_lane_comes_out_of_the_state() -> None:
    def work(run: Run) -> None:
        with pytest.raises(PeerLost, match="worker 1 died"):
            run.state_dict()

    survive(work)


def test_an_error_on_the_lane_comes_out_of_close_and_nothing_is_left() -> None:
    before = lanes()

    def work(run: Run) -> None:
        with pytest.raises(PeerLost, match="worker 1 died"):
            run.close()
        run.close()  # once more does nothing

    run = survive(work)
    assert lanes() <= before
    run.replica.optimizer.step()  # the optimizer is the user's again


def test_an_error_on_the_lane_does_not_hide_the_users_own() -> None:
    before = lanes()

    def work(run: Run) -> None:
        with pytest.raises(KeyError, match="the user's own"), run:
            raise KeyError("the user's own")

    survive(work)
    assert lanes() <= before


# --- bucket=auto -----------------------------------------------------------------------------------------------------

CANDIDATES = {1000: 1, 112: 2, 16: 4}  # bytes, and how many buckets of them the small model has
SPELT = {1000: "1KB", 112: "112B", 16: "16B"}
STEPS = 3 + 2 * 4 * len(CANDIDATES)  # until the size is fixed
AUTO = ("bucket=auto", "bucket=auto, update=bucket", "bucket=auto, update=bucket, wait=forward")


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_average, "find_sizes", lambda _: list(CANDIDATES))


@pytest.fixture
def made_up_times(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """By thread, how long a step with each candidate takes there."""
    times: dict[str, list[float]] = {}

    class Scripted(Tuner):
        def note(self, seconds: float) -> None:
            assert seconds >= 0
            super().note(times[threading.current_thread().name][self.current])

    monkeypatch.setattr(gradient_average, "Tuner", Scripted)
    return times


def tune(comm: Comm, how: str = "bucket=auto", steps: int = STEPS + 4) -> list[int]:
    """The size of the buckets that each step was made with, as the state tells it."""
    with set_up(comm, f"gradient-average({how})") as run:
        sizes = []
        for step in range(steps):
            sizes.append(run.state_dict()["algorithm"]["bucket"])
            assert len(run.replica.buckets) == CANDIDATES[sizes[-1]]
            assert run.algorithm.tuning == (step < STEPS)
            assert run.algorithm.choices() == (
                {} if step < STEPS else {"bucket": f"{sizes[-1]}B" if sizes[-1] < 1000 else "1KB"}
            )
            train(run, range(step, step + 1))
        return sizes


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("how", AUTO)
def test_all_workers_fix_the_size_that_is_fastest_over_all(how: str, made_up_times: dict[str, list[float]]) -> None:
    """They have other favourites; the second candidate is nobody's, and takes least in sum."""
    own = [[1.0, 3.0, 9.0], [9.0, 3.0, 1.0]]

    def work(comm: Comm) -> list[int]:
        made_up_times[threading.current_thread().name] = own[comm.rank]
        return tune(comm, how)

    a_round = [size for size in CANDIDATES for _ in range(4)]
    for sizes in on_threads(2, work):
        assert sizes == [1000] * 3 + a_round * 2 + [112] * 4


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("best", range(3))
def test_the_fastest_is_kept(best: int, made_up_times: dict[str, list[float]]) -> None:
    made_up_times[threading.current_thread().name] = [1.0 if k == best else 1.5 for k in range(3)]
    assert tune(World(1).comm(0))[STEPS:] == [list(CANDIDATES)[best]] * 4


def test_what_is_timed_is_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From step to step, without the cutting."""
    clock: Any = FakeClock()
    noted: list[float] = []
    monkeypatch.setattr(gradient_average, "find_sizes", lambda _: [1000, 80])
    note, cut = Tuner.note, GradientAverage._cut

    def note_too(tuner: Tuner, seconds: float) -> None:
        noted.append(seconds)
        note(tuner, seconds)

    def cut_slowly(algorithm: GradientAverage, nbytes: int) -> None:
        cut(algorithm, nbytes)
        clock.sleep(100.0)

    monkeypatch.setattr(Tuner, "note", note_too)
    with set_up(World(1, clock=clock).comm(0), "ddp(bucket=auto)") as run:
        monkeypatch.setattr(GradientAverage, "_cut", cut_slowly)
        for step in range(12):
            clock.sleep(1.0 + step)
            train(run, range(step, step + 1))
    assert clock.now() > 200, "it was cut in between"
    assert noted == [1.0 + step for step in range(12)]


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("size", [2, 3])
def test_tuning_changes_no_result(size: int) -> None:
    def work(comm: Comm, how: str) -> Tensor:
        with set_up(comm, f"gradient-average({how})", Forked(), adam) as run:
            for step in range(STEPS + 2):
                forked_step(run, step)
        return weights(run.model)

    expected = on_threads(size, lambda comm: work(comm, "bucket=100B"))
    for how in AUTO:
        for found, each in zip(on_threads(size, lambda comm, how=how: work(comm, how)), expected, strict=True):
            if size == 2:  # where no order of adding up differs
                assert torch.equal(found, each)
            torch.testing.assert_close(found, each, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("how", AUTO)
def test_a_state_from_after_the_tuning_is_not_tuned_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(comm: Comm) -> tuple[dict[str, Any], Tensor]:
        with set_up(comm, f"gradient-average({how})") as run:
            train(run, range(STEPS))
            state = copy.deepcopy(run.state_dict())
            train(run, range(STEPS, STEPS + 3))
        return state, weights(run.model)

    def go_on(comm: Comm) -> tuple[set[int], Tensor]:
        with set_up(comm, f"gradient-average({how})") as run:
            run.load_state_dict(saved[comm.rank][0])
            sizes = set()
            for step in range(STEPS, STEPS + 3):
                sizes.add(len(run.replica.buckets))
                train(run, range(step, step + 1))
        return sizes, weights(run.model)

    saved = on_threads(2, save)
    assert all(state["algorithm"]["tuned"] for state, _ in saved)
    size = saved[0][0]["algorithm"]["bucket"]
    monkeypatch.setattr(Tuner, "note", lambda *_: pytest.fail("a step was timed"))
    for (sizes, found), (_, expected) in zip(on_threads(2, go_on), saved, strict=True):
        assert sizes == {CANDIDATES[size]}
        assert torch.equal(found, expected)


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("steps", [0, 9, STEPS - 1])
def test_a_state_from_the_midst_of_the_tuning_goes_on_and_is_tuned_from_the_start(steps: int) -> None:
    def save(comm: Comm) -> dict[str, Any]:
        with set_up(comm, "ddp(bucket=auto)") as run:
            train(run, range(steps))
            return copy.deepcopy(run.state_dict())

    def go_on(comm: Comm) -> tuple[int, dict[str, Any], Tensor]:
        with set_up(comm, "ddp(bucket=auto)") as run:
            train(run, range(9))  # which leaves it in the midst of a tuning of its own
            run.load_state_dict(saved[comm.rank])
            first = len(run.replica.buckets)
            train(run, range(steps, steps + STEPS))
            return first, run.state_dict()["algorithm"], weights(run.model)

    def work_plainly(comm: Comm) -> Tensor:
        with set_up(comm) as run:
            train(run, range(steps + STEPS))
            return weights(run.model)

    saved = on_threads(2, save)
    assert not saved[0]["algorithm"]["tuned"]
    results = on_threads(2, go_on)
    for (first, state, found), expected in zip(results, on_threads(2, work_plainly), strict=True):
        assert first == CANDIDATES[saved[0]["algorithm"]["bucket"]]
        assert state["tuned"]
        assert state == results[0][1]
        assert torch.equal(found, expected)


def test_only_auto_is_not_deterministic() -> None:
    assert not GradientAverage(bucket="auto").deterministic
    assert GradientAverage().deterministic
    assert GradientAverage(bucket=0, update="bucket", wait="forward").deterministic
