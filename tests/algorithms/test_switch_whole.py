"""Switches within switches, their state, and what of a run they take over from the algorithm that trains."""

from __future__ import annotations

import gc
import io
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from algorithms.test_model_average import FromElsewhere
from fake_clock import FakeClock
from switches import AT, END, current, set_rate, train_and_look
from torch import Tensor
from training import (
    adam,
    batch_of,
    distribute,
    gradients,
    loss_of,
    set_up,
    small_model,
    train,
    weights,
)
from workers import on_threads

from tutti.algorithms.base import Algorithm
from tutti.algorithms.switch import Switch
from tutti.comm.base import Comm, Lane
from tutti.comm.threads import World
from tutti.engine import Run
from tutti.errors import UserError
from tutti.launch import LaunchOptions, launch
from tutti.replica import Replica
from tutti.spec import SpecError, parse
from tutti.train import Plan
from tutti.train import train as train_task

# --- switches within switches ----------------------------------------------------------------------------------------


def test_a_switch_within_a_switch() -> None:
    """However three algorithms are put together."""

    def work(comm: Comm, spec: str) -> list[Tensor]:
        with set_up(comm, spec) as run:
            return train_and_look(run, range(END))

    left, right, first, first_two = (
        np.array(on_threads(4, lambda comm, spec=spec: work(comm, spec)))  # by worker, step and weight
        for spec in (
            "switch(4, switch(2, ddp, d-psgd), update-average)",
            "switch(2, ddp, switch(4, d-psgd, update-average))",
            "ddp",
            "switch(2, ddp, d-psgd)",
        )
    )
    assert np.array_equal(left, right)
    assert np.array_equal(left[:, :2], first[:, :2])
    assert np.array_equal(left[:, 2], first_two[:, 2])
    assert not np.allclose(left[:, 2], left[0, 2], rtol=1e-6)
    assert np.array_equal(left[:, 3:], np.broadcast_to(left[0, 3:], left[:, 3:].shape)), "equal from the second one on"


@pytest.mark.parametrize(
    "spec",
    ["switch(asked, switch(asked, ddp, d-psgd), update-average)", "switch(asked, ddp, switch(asked, d-psgd))"],
)
def test_every_time_it_is_asked_it_goes_on_by_one(spec: str) -> None:
    def work(comm: Comm) -> list[str]:
        names = []
        with set_up(comm, spec) as run:
            for step in range(6):
                if step in (1, 3) and comm.rank == 1:
                    run.algorithm.ask()
                train(run, range(step, step + 1))
                innermost = current(run)
                names.append(str(innermost.current if isinstance(innermost, Switch) else innermost))
        return [name.partition("(")[0] + "/" + str("gossip" in name) for name in names]

    last = "update-average/False" if "update" in spec else "model-average/False"
    expected = ["gradient-average/False", *["model-average/True"] * 2, *[last] * 3]
    assert on_threads(2, work) == [expected] * 2


def test_an_ask_reaches_the_switch_within_and_is_no_error_once_that_has_switched() -> None:
    with set_up(World(1).comm(0), "switch(5, switch(asked, ddp, update-average), ddp)") as run:
        for step in range(6):
            run.algorithm.ask()
            train(run, range(step, step + 1))
        assert str(current(run)) == "gradient-average(all-reduce(ring))"


# --- state -----------------------------------------------------------------------------------------------------------

RESUMED = [
    f"switch({AT}, ddp, d-psgd)",
    f"switch({AT}, relay-sgd, ddp)",
    f"switch({AT}, d-psgd, update-average(relay(chain, missing=initial)))",
    f"switch({AT}, model-average(gossip(ring), order=combine-first), model-average(relay(chain, missing=initial)))",
    f"switch({AT}, ddp, model-average(gossip(ring), order=combine-first))",
    f"switch({AT}, ddp, gradient-average(bucket=0, update=bucket, wait=forward))",
    f"switch(4, switch(2, ddp, d-psgd), switch({END}, relay-sgd, ddp))",
]


def saved(run: Run) -> bytes:
    torch.save(run.state_dict(), file := io.BytesIO())
    return file.getvalue()


def load(run: Run, file: bytes) -> None:
    run.load_state_dict(torch.load(io.BytesIO(file), weights_only=True))


@pytest.mark.parametrize("spec", RESUMED)
def test_it_resumes_to_the_bit_wherever_it_was_saved(spec: str) -> None:
    """In a new run, and in the old one, which goes back behind its own switch."""

    def uninterrupted(comm: Comm) -> tuple[list[Tensor], list[bytes]]:
        with set_up(comm, spec, optimizer=adam) as run:
            found, files = [], []
            for step in range(END):
                files.append(saved(run))
                found += train_and_look(run, range(step, step + 1))
            return found, files

    def go_on(comm: Comm, *saved_at: int) -> None:
        expected, files = results[comm.rank]
        with set_up(comm, spec, small_model(seed=comm.rank + 5), adam) as run:
            for at in saved_at:
                load(run, files[at])
                found = train_and_look(run, range(at, END))
                assert all(torch.equal(a, b) for a, b in zip(found, expected[at:], strict=True))

    results = on_threads(3, uninterrupted)
    on_threads(3, lambda comm: go_on(comm, AT, AT - 1))
    on_threads(3, lambda comm: go_on(comm, END - 1))


def test_the_state_remembers_who_has_asked_and_the_largest_learning_rate() -> None:
    def ask(comm: Comm) -> bytes:
        with set_up(comm, "switch(asked, ddp, d-psgd)") as run:
            train(run, range(2))
            if comm.rank == 1:
                run.algorithm.ask()
            return saved(run)

    def decay(comm: Comm) -> bytes:
        with set_up(comm, "switch(lr-decay, ddp, d-psgd)") as run:
            train(run, range(2))
            set_rate(run, 0.01)
            return saved(run)

    def go_on(comm: Comm, at: str, files: list[bytes]) -> str:
        with set_up(comm, f"switch({at}, ddp, d-psgd)") as run:
            load(run, files[comm.rank])
            train(run, range(1))
            return current(run).name

    for at, work in [("asked", ask), ("lr-decay", decay)]:
        files = on_threads(2, work)
        assert on_threads(2, lambda comm, at=at, files=files: go_on(comm, at, files)) == ["model-average"] * 2


def test_the_state_says_which_one_it_belongs_to() -> None:
    with set_up(World(1).comm(0), "switch(1, ddp, model-average)") as run:
        states = [run.state_dict()["algorithm"]]
        train(run, range(1))
        states.append(run.state_dict()["algorithm"])
    assert [state["switched"] for state in states] == [False, True]
    assert [sorted(state["current"]) for state in states] == [
        ["bucket", "exchanges", "tuned"],
        ["changes", "exchanges"],
    ]


# --- what it takes over ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "reason"), [("torch-ddp", "it wraps the model"), ("single", "it runs on one worker")])
@pytest.mark.parametrize("spec", ["switch(3, {}, ddp)", "switch(3, ddp, {})", "switch(3, ddp, switch(5, {}, ddp))"])
def test_what_cannot_be_a_part_is_refused_in_a_sentence(spec: str, name: str, reason: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(spec.format(name), Algorithm)
    assert refused.value.message == f"'{name}' cannot be a part of 'switch', since {reason}; use ddp"


def test_what_the_other_one_refuses_is_refused_at_the_start() -> None:
    model = small_model()
    optimizer = FromElsewhere(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match="update=bucket steps on some parameters at a time"):
        distribute(model, optimizer, "switch(1000, ddp, ddp(update=bucket))", comm=World(1).comm(0))
    with pytest.raises(UserError, match="leaves every worker with another gradient"):
        distribute(model, optimizer, "switch(1000, ddp, gradient-average(gossip))", comm=World(2).comm(0))


def test_traits_are_those_of_the_current_one() -> None:
    with set_up(World(1).comm(0), "switch(1, ddp, d-psgd)") as run:
        assert (run.algorithm.equal, run.algorithm.buffers) == (True, "broadcast")
        train(run, range(1))
        assert (run.algorithm.equal, run.algorithm.buffers) == (False, "local")
    fixed, tuned = parse("ddp", Algorithm), parse("ddp(bucket=auto)", Algorithm)
    assert [Switch(1, *pair).deterministic for pair in [(fixed, fixed), (fixed, tuned), (tuned, fixed)]] == [
        True,
        False,
        False,
    ]


def test_it_tells_when_it_switched_and_what_the_current_one_chose() -> None:
    with set_up(World(1).comm(0), "switch(asked, ddp, ddp(bucket=auto))") as run:
        train(run, range(39))
        assert run.algorithm.choices() == {"never": "to switch"}
        run.algorithm.ask()
        train(run, range(1))
        state = run.state_dict()
        assert run.algorithm.choices() == {"to switch": "behind step 40"}
        train(run, range(40))
        assert list(run.algorithm.choices()) == ["to switch", "bucket"]
    with set_up(World(1).comm(0), "switch(asked, ddp, ddp(bucket=auto))") as run:
        run.load_state_dict(state)
        assert run.algorithm.choices() == {"to switch": "behind step 40"}


def test_what_it_was_told_is_no_choice_of_its_own() -> None:
    with set_up(World(1).comm(0), "switch(2, ddp, ddp(bucket=auto))") as run:
        train(run, range(3))
        assert run.algorithm.choices() == {}
        train(run, range(40))
        assert list(run.algorithm.choices()) == ["bucket"]


def test_one_object_may_serve_all_workers() -> None:
    shared = parse(f"switch({AT}, ddp, d-psgd)", Algorithm)

    def work(comm: Comm, algorithm: str | Algorithm) -> Tensor:
        with set_up(comm, algorithm) as run:
            train(run, range(END))
        return weights(run.model)

    for ours, theirs in zip(
        on_threads(3, lambda comm: work(comm, shared)), on_threads(3, lambda comm: work(comm, str(shared))), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert isinstance(shared, Switch)
    assert not shared.switched
    assert shared.current is shared.one


def test_the_first_one_is_let_go() -> None:
    with set_up(World(1).comm(0), "switch(2, gradient-average(bucket=0, update=bucket, wait=forward), ddp)") as run:
        train(run, range(1))
        left = [weakref.ref(current(run)), weakref.ref(run.replica.buckets[0])]
        train(run, range(1, 2))
        gc.collect()
        assert [ref() for ref in left] == [None, None]
        assert all(not module._forward_pre_hooks for module in run.model)


def test_gradients_add_up_across_the_switch() -> None:
    """For a loop that never clears them."""

    def work(comm: Comm, algorithm: str) -> list[Tensor | None]:
        with set_up(comm, algorithm) as run:
            for step in range(3):
                with run.accumulate():
                    loss_of(run.model, batch_of(comm.rank, 10 * step)).backward()
                loss_of(run.model, batch_of(comm.rank, 10 * step + 1)).backward()
                run.step()
            return gradients(run.model)

    specs = ("ddp", "switch(2, ddp(bucket=0), ddp)")
    plain, ours = (on_threads(2, lambda comm, spec=spec: work(comm, spec)) for spec in specs)
    for one, other in zip(plain[0], ours[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=0)


def test_with_a_scaler_the_other_one_gets_it_too() -> None:
    def work(comm: Comm, algorithm: str) -> Tensor:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with set_up(comm, algorithm) as run:
            for step in range(4):
                run.replica.optimizer.zero_grad()
                scaler.scale(loss_of(run.model, batch_of(comm.rank, step))).backward()
                run.step(scaler)
                scaler.update()
            return weights(run.model)

    plain, ours = (on_threads(2, lambda c, s=s: work(c, s)) for s in ("ddp", "switch(2, ddp, model-average)"))
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-11, atol=1e-13)


@dataclass
class Slow(Algorithm):
    """Waits a second outside of `finish` and two seconds in it, on a clock that only it moves."""

    equal: ClassVar[bool] = False

    def setup(self, replica: Replica, lane: Lane) -> None:
        replica.make_buckets(0, self.on_bucket)
        self._clock, self._waited, self._busy = lane.comm.clock, 0.0, False

    def step(self, replica: Replica) -> None:
        self._busy = True
        self._clock.sleep(1.0)
        self._waited += 1.0

    def finish(self) -> None:
        if self._busy:
            self._clock.sleep(2.0)
        self._busy = False

    def take_waited(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited


def test_no_time_is_lost_or_counted_twice() -> None:
    clock: Any = FakeClock()
    with set_up(World(1, clock=clock).comm(0), Switch(2, Slow(), Slow())) as run:
        for step in range(3):
            train(run, range(step, step + 1))
            assert run.take_times() == (0.0, 3.0), f"step {step + 1}"


def test_over_real_processes_it_is_what_it_is_on_threads() -> None:
    plan = Plan(steps=6, global_batch=32)
    spec = "switch(3, update-average(relay(chain, missing=initial)), switch(asked, d-psgd))"

    def run(engine: str) -> list[dict[str, Any]]:
        place = LaunchOptions(2, engine=engine, preload=("sklearn.datasets",))
        rows: list[dict[str, Any]] = launch(train_task, (spec, plan), place, lambda _: None)
        return rows

    for ours, theirs in zip(run("processes"), run("threads"), strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)
        assert ours["bytes_per_step"] == theirs["bytes_per_step"]
