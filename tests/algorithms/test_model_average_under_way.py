"""When and where model averaging between neighbours exchanges, what its state holds, and what it refuses.

That its weights are right is said in test_model_average_apart.py.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from algorithms.test_model_average import OPTIMIZERS, FromElsewhere, plain_sgd
from algorithms.test_model_average_apart import EVERY_OPTIMIZER, EVERY_ORDER, oracle
from decentralised_oracle import follow_all, make_quadratics
from fake_clock import FakeClock
from torch import Tensor, nn
from training import adam, batch_of, loss_of, momentum, normed_model, set_up, small_model, train, weights
from workers import on_threads

from tutti.algorithms.model_average import ModelAverage
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.engine import Run
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.exchanges.gossip import Gossip
from tutti.spec import parse

# --- when and where --------------------------------------------------------------------------------------------------

RELAYS = (
    "relay(chain)",
    "relay(double-binary-tree, missing=initial)",
    "gossip(ring)",
    "push-sum(one-peer-exponential)",
)


@pytest.mark.parametrize("bucket", ["0", "4MiB"])
@EVERY_OPTIMIZER
@pytest.mark.parametrize("exchange", RELAYS)
def test_update_by_bucket_gives_the_same_bits(exchange: str, optimizer: str, bucket: str) -> None:
    problem = make_quadratics(3, noise=0.5)
    whole, by_bucket = (
        follow_all(
            f"model-average({exchange}, bucket={bucket}, update={update})", problem, 5, OPTIMIZERS[optimizer]().ours
        )
        for update in ("whole", "bucket")
    )
    assert np.array_equal(whole, by_bucket)


@dataclass
class Noting(Gossip):
    """Notes what it does, among the notes of others."""

    notes: list[str] = field(init=False, default_factory=list)
    agreed: threading.Semaphore = field(init=False, default_factory=lambda: threading.Semaphore(0))

    def start(self, buffer: Tensor, step: int, samples: float) -> Callable[[], None]:
        on_lane = threading.current_thread().name.startswith("tutti-lane")
        complete = super().start(buffer, step, samples)

        def note() -> None:
            complete()
            self.notes.append(f"agreed {step} on {self.tag} {'on the lane' if on_lane else 'by itself'}")
            self.agreed.release()

        return note


class Patient(nn.Module):
    """A model whose forward takes until so many buckets have been agreed on."""

    def __init__(self, noting: Noting, buckets: int) -> None:
        super().__init__()
        self.inner, self.noting, self.buckets = small_model(), noting, buckets

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(self.buckets):
            assert self.noting.agreed.acquire(timeout=20), "nothing is exchanged while this computes"
        self.noting.notes.append("forward over")
        result: Tensor = self.inner(inputs)
        return result


def test_combine_first_is_exchanged_while_forward_goes_on() -> None:
    """All of it, in every step; before `step` is called there is nothing left to wait for."""

    def work(comm: Comm) -> list[str]:
        noting = Noting()
        with set_up(comm, ModelAverage(noting, bucket=0, order="combine-first"), Patient(noting, 4)) as run:
            for step in range(3):
                run.replica.optimizer.zero_grad()
                loss_of(run.model, batch_of(run.rank, step)).backward()
                wait_for_lane(run)
                noting.notes.append("step")
                run.step()
        return noting.notes

    expected = []
    for step in range(4):
        expected += [f"agreed {step} on weights/{index} on the lane" for index in range(4)]
        expected += ["forward over", "step"] if step < 3 else []
    assert on_threads(3, work) == [expected] * 3


def wait_for_lane(run: Run) -> None:
    """Until all that is under way is complete, without asking for it."""
    assert isinstance(run.algorithm, ModelAverage)
    assert all(pending.finished.wait(20) for pending in run.algorithm._pending.values())  # type: ignore[attr-defined]


@dataclass
class Lengthy(Exchange):
    """Takes five seconds of a clock that only it moves, while something computes."""

    computing: threading.Event = field(default_factory=threading.Event)

    def start(self, buffer: Tensor, step: int, samples: float) -> Callable[[], None]:
        assert self.computing.wait(20)
        return lambda: self.comm.clock.sleep(5.0)


def test_what_computing_hides_is_not_exposed() -> None:
    clock: Any = FakeClock()
    lengthy = Lengthy()
    with set_up(World(1, clock=clock).comm(0), ModelAverage(lengthy, order="combine-first")) as run:
        for step in range(3):
            run.replica.optimizer.zero_grad()
            lengthy.computing.set()
            loss = loss_of(run.model, batch_of(0, step))
            wait_for_lane(run)
            lengthy.computing.clear()
            loss.backward()
            run.step()
        assert run.take_times() == (15.0, 0.0)
        lengthy.computing.set()


@dataclass
class Announcing(Noting):
    """Says that it has begun before it does so."""

    began: threading.Event = field(default_factory=threading.Event)

    def start(self, buffer: Tensor, step: int, samples: float) -> Callable[[], None]:
        self.began.set()
        return super().start(buffer, step, samples)


class LateLayer(nn.Module):
    """Its backward goes on only when something has begun."""

    def __init__(self, began: threading.Event) -> None:
        super().__init__()
        self.began = began
        self.waited: list[bool] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.requires_grad:
            inputs.register_hook(lambda _: self.waited.append(self.began.wait(20)))
        return inputs * 1


def test_by_bucket_the_last_layer_goes_out_while_backward_is_at_the_first() -> None:
    announcing = Announcing()
    late = LateLayer(announcing.began)
    inner = small_model()
    model = nn.Sequential(inner[0], late, inner[1], inner[2])
    with set_up(World(1).comm(0), ModelAverage(announcing, bucket=0, update="bucket"), model) as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        assert late.waited == [True]
        run.step()
    assert [note.split()[3] for note in announcing.notes] == [f"weights/{index}" for index in range(4)]


# --- state and buffers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("exchange", [*RELAYS, "all-reduce"])
@pytest.mark.parametrize("how", ["order=combine-first", "update=bucket, bucket=0"])
def test_a_run_goes_on_from_its_state_bit_by_bit(
    exchange: str, how: str, optimizer: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    """What combine-first has begun behind the step before is part of it."""
    algorithm = f"model-average({exchange}, {how})"

    def work(comm: Comm) -> tuple[Tensor, bytes]:
        with set_up(comm, algorithm, optimizer=optimizer) as run:
            train(run, range(3))
            file = io.BytesIO()
            torch.save(run.state_dict(), file)
            train(run, range(3, 6))
            return weights(run.model), file.getvalue()

    def resume(comm: Comm) -> Tensor:
        with set_up(comm, algorithm, small_model(seed=comm.rank + 5), optimizer) as run:
            train(run, range(2))
            run.load_state_dict(torch.load(io.BytesIO(whole[comm.rank][1]), weights_only=True))
            train(run, range(3, 6))
            return weights(run.model)

    whole = on_threads(3, work)
    for (expected, _), found in zip(whole, on_threads(3, resume), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("spec", ["d-psgd", "d-psgd-overlap", "relay-sgd", "sgp"])
def test_batch_norm_statistics_stay_at_home(spec: str) -> None:
    """Nothing is sent for them, not even when something else is."""

    def work(comm: Comm) -> tuple[Tensor, float]:
        with set_up(comm, spec, normed_model()) as run:
            train(run, range(1))
            return run.model[1].running_mean.clone(), run.meter.sent("buffers")

    def alone(worker: int) -> Tensor:
        model = normed_model()
        model(batch_of(worker, 0)[0])
        mean: Tensor = model[1].running_mean
        return mean

    for worker, (found, sent) in enumerate(on_threads(3, work)):
        assert torch.equal(found, alone(worker))
        assert sent == 0


# --- what is refused -------------------------------------------------------------------------------------------------


def test_combine_first_has_nothing_to_step_by_bucket() -> None:
    with pytest.raises(ValueError, match="update=bucket is for order=adapt-first"):
        ModelAverage(update="bucket", order="combine-first")


def by_bucket(optimizer: Callable[[nn.Module], torch.optim.Optimizer] = plain_sgd) -> Run:
    return set_up(World(1).comm(0), "model-average(update=bucket)", optimizer=optimizer)


def test_by_bucket_only_torchs_own_optimizers_can_step() -> None:
    with pytest.raises(UserError, match="FromElsewhere is none of torch's optimizers"):
        by_bucket(lambda model: FromElsewhere(model.parameters(), lr=0.1))


def test_by_bucket_a_second_backward_in_one_step_is_refused() -> None:
    with by_bucket() as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        with pytest.raises(UserError, match=r"run\.accumulate\(\), or use update=whole"):
            loss_of(run.model, batch_of(0, 1)).backward()


def test_by_bucket_gradients_may_add_up_first() -> None:
    def accumulated(comm: Comm, update: str) -> Tensor:
        with set_up(comm, f"model-average(relay, update={update})") as run:
            for step in range(3):
                run.replica.optimizer.zero_grad()
                with run.accumulate():
                    loss_of(run.model, batch_of(comm.rank, 10 * step)).backward()
                loss_of(run.model, batch_of(comm.rank, 10 * step + 1)).backward()
                run.step()
            return weights(run.model)

    whole, bucket = (on_threads(3, partial(accumulated, update=update)) for update in ("whole", "bucket"))
    assert all(torch.equal(one, other) for one, other in zip(whole, bucket, strict=True))


def test_by_bucket_a_scaler_is_refused() -> None:
    with by_bucket() as run:
        loss_of(run.model, batch_of(0, 0)).backward()
        with pytest.raises(UserError, match="before a GradScaler could look at all gradients; use update=whole"):
            run.step(torch.amp.GradScaler("cpu"))


@EVERY_ORDER
def test_an_optimizer_from_elsewhere_steps_once_on_everything(order: str) -> None:
    problem = make_quadratics(3)
    spec = f"model-average(gossip(ring), bucket=0, order={order})"
    found = follow_all(spec, problem, 4, lambda model: FromElsewhere(model.parameters(), lr=0.05))
    np.testing.assert_allclose(found, oracle(parse(spec, ModelAverage), problem, 4, "sgd"), rtol=1e-11)
