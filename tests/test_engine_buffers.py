"""Buffers, the look at the first batch, and the figures that a run keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_checks import Peculiar, alone, everything
from fake_clock import FakeClock
from torch import Tensor, nn
from training import (
    batch_of,
    loss_of,
    normed_model,
    set_up,
    train,
)
from workers import on_threads

from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm
from tutti.comm.threads import World

# --- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ddp", "ring", "gather-scatter"])
def test_buffers_are_worker_0s_after_every_step(algorithm: str) -> None:
    def work(comm: Comm) -> list[Tensor]:
        model = Peculiar(seed=comm.rank)
        with set_up(comm, algorithm, model) as run:
            own = [run.replica.model.body[1].running_mean.clone()]
            for step in range(3):
                run.replica.optimizer.zero_grad()
                loss = loss_of(run.model, batch_of(comm.rank, step))
                own.append(model.body[1].running_mean.clone())
                loss.backward()
                run.step()
            assert int(model.body[1].num_batches_tracked) == 3
            return [own[-1], *everything(model)]

    first, *others = on_threads(3, work)
    for other in others:
        assert not torch.equal(first[0], other[0]), "before the exchange every worker has its own"
        assert all(torch.equal(a, b) for a, b in zip(first[1:], other[1:], strict=True))
    assert any(torch.equal(first[0], buffer) for buffer in first[1:]), "and what all have is worker 0's"


class AveragedBuffers(GradientAverage):
    buffers = "average"


class LocalBuffers(GradientAverage):
    buffers = "local"


def test_buffers_may_be_averaged_or_left_alone() -> None:
    def work(comm: Comm, algorithm: GradientAverage) -> tuple[Tensor, Tensor]:
        model = normed_model()
        with set_up(comm, algorithm, model) as run:
            loss = loss_of(run.model, batch_of(comm.rank, 0))
            own = model[1].running_mean.clone()
            loss.backward()
            assert int(model[1].num_batches_tracked) == 1
            return own, model[1].running_mean.clone()

    averaged = on_threads(3, lambda comm: work(comm, AveragedBuffers()))
    mean = torch.stack([own for own, _ in averaged]).mean(0)
    for _, found in averaged:
        torch.testing.assert_close(found, mean, rtol=1e-12, atol=0)
    for own, found in on_threads(3, lambda comm: work(comm, LocalBuffers())):
        assert torch.equal(own, found)


# --- the first batch -------------------------------------------------------------------------------------------------


def first_steps(comm: Comm, batch: Callable[[int, int], Any]) -> None:
    with set_up(comm) as run:
        for step in range(2):
            loss_of(run.model, batch(comm.rank, step)).backward()
            run.step()


def test_a_warning_when_all_see_the_same_first_batch() -> None:
    with pytest.warns(UserWarning, match="all 2 workers saw the same first batch: give each its own share") as caught:
        on_threads(2, lambda comm: first_steps(comm, lambda _, step: batch_of(0, step)))
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]


def test_no_warning_when_one_differs_or_is_alone() -> None:
    on_threads(3, lambda comm: first_steps(comm, lambda rank, step: batch_of(rank // 2, step)))
    on_threads(3, lambda comm: first_steps(comm, lambda rank, step: batch_of(rank if step == 0 else 0, step)))
    on_threads(1, lambda comm: first_steps(comm, batch_of))


def test_evaluating_the_same_data_first_is_no_reason_to_warn() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            run.model.eval()
            run.model(batch_of(0, 0)[0])
            run.model.train()
            train(run, range(1))

    on_threads(2, work)


class Lookup(nn.Module):
    """Takes whatever it is given, by position and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, matrix: Any, *, scale: Any = None) -> Tensor:
        return (matrix @ self.weight).sum() * (1 if scale is None else scale.sum())


@pytest.mark.parametrize(
    ("matrix", "scale"),
    [
        (torch.eye(3).to_sparse(), None),
        (torch.eye(3), torch.tensor(2)),
        (torch.eye(3), torch.tensor([True, False])),
        (torch.eye(3, dtype=torch.float32).t(), torch.ones(2, 0).bfloat16()),
        (torch.zeros(0, 3), None),
        (torch.ones(1, 3).expand(4, 3), None),
    ],
)
def test_inputs_of_any_kind_are_looked_at(matrix: Tensor, scale: Tensor | None) -> None:
    with alone(model=Lookup()) as run:
        run.model(matrix, scale=scale).backward()
        run.step()


def test_inputs_by_name_are_looked_at() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm, model=Lookup()) as run:
            run.model(torch.eye(3), scale=torch.tensor(float(comm.rank))).backward()
            run.step()

    on_threads(2, work)


# --- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_figures_over_all_workers(size: int) -> None:
    def work(comm: Comm) -> tuple[Any, ...]:
        with set_up(comm) as run:
            rank = comm.rank
            matrix = torch.full((2, 3), float(rank), dtype=torch.float64).t()
            with_gradient = torch.tensor(float(rank), requires_grad=True)
            assert not run.mean(with_gradient).requires_grad
            assert torch.equal(matrix, torch.full((3, 2), float(rank), dtype=torch.float64)), "left as it was"
            return (
                run.mean(float(rank)),
                run.mean(rank),
                run.mean(matrix),
                run.mean(torch.tensor(rank)),
                run.mean(torch.tensor([True, rank == 0])),
                run.mean(torch.tensor([200], dtype=torch.uint8)),
                run.sums([1.0, rank, -2.5]),
                run.any(rank == size - 1),
                run.any(False),
                run.any(True),
                run.size,
            )

    mean = (size - 1) / 2
    for one, two, matrix, whole, flags, bytes_, sums, last, nobody, everybody, found in on_threads(size, work):
        assert one == two == mean
        assert torch.equal(matrix, torch.full((3, 2), mean, dtype=torch.float64))
        assert float(whole) == mean
        assert flags.tolist() == [1.0, 1 / size]
        assert bytes_.tolist() == [200.0]
        assert sums.tolist() == [size, size * mean, -2.5 * size]
        assert (last, nobody, everybody, found) == (True, False, True, size)


class SlowExchange(GradientAverage):
    """Takes time on a clock that only it moves: 5 on the lane while backward goes on, 2 after it."""

    def finish(self) -> None:
        super().finish()
        clock = self._lane.comm.clock
        if isinstance(clock, FakeClock) and self._lane.comm.rank == 0 and self._replica.in_backward:
            self._lane.busy.append((clock.now() - 5, clock.now() + 2))
            clock.sleep(2.0)


def test_times_are_hidden_or_exposed() -> None:
    clock: Any = FakeClock()
    with set_up(World(1, clock=clock).comm(0), SlowExchange()) as run:
        assert run.take_times() == (0.0, 0.0)
        for step in range(2):
            train(run, range(step, step + 1))
        assert run.take_times() == (10.0, 4.0)
        assert run.take_times() == (0.0, 0.0)


def test_agreeing_on_buffers_hides_nothing_that_was_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = FakeClock()

    def work(comm: Comm) -> tuple[float, float]:
        run = set_up(comm, SlowExchange(), normed_model())
        train(run, range(1))
        run.close()
        return run.take_times()

    def slow(_: nn.Module, comm: Comm, *__: Any) -> None:
        if comm.rank == 0:
            clock.sleep(3.0)

    monkeypatch.setattr("tutti.engine.agree_on_buffers", slow)
    assert on_threads(2, work, clock=clock)[0] == (5.0, 5.0)
