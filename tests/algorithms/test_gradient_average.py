"""When and where gradients are exchanged; that the result is right is said in contracts/test_algorithms.py."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from training import batch_of, gradients, loss_of, set_up, small_model, train
from workers import on_threads

from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.exchanges.base import Exchange


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
        assert state["algorithm"] == {"exchanges": [{"of": f"gradients/{index}"} for index in range(4)]}
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
