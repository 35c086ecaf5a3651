"""When and where gradients are exchanged and weights are updated; that the default's result is right is said in
contracts/test_algorithms.py, and that the others give the same bits is said here.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from bucket_updates import Recorder, forked_step
from fake_clock import FakeClock
from torch import Tensor, nn
from training import (
    Forked,
    adam,
    batch_of,
    gradients,
    loss_of,
    set_up,
    small_model,
    train,
    weights,
)
from workers import on_threads

from tutti.algorithms import gradient_average
from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.tuning import Tuner


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


def test_half_precision_ends_with_the_same_bits() -> None:
    def work(comm: Comm, combine: str) -> list[Tensor | None]:
        model = small_model(dtype=torch.bfloat16)
        with set_up(comm, f"gradient-average(all-reduce(ring, {combine}))", model) as run:
            loss_of(run.model, batch_of(comm.rank, 0, dtype=torch.bfloat16)).backward()
            return gradients(run.model)

    for combine in ("weighted-mean", "mean"):
        one, other = on_threads(2, lambda comm, c=combine: work(comm, c))
        assert all(torch.equal(a, b) and a.dtype is torch.bfloat16 for a, b in zip(one, other, strict=True))


def test_the_first_bucket_is_full_sooner() -> None:
    with set_up(World(1).comm(0), model=nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))) as run:
        sizes = [bucket.weights.nbytes for bucket in run.replica.buckets]
    assert 2**20 <= sizes[0] < 2 * 2**20 < sizes[1]


@pytest.mark.parametrize("exchange", ["gossip(ring)", "relay(chain)", "push-sum", "corrupt(gossip(ring))"])
def test_an_exchange_that_leaves_workers_apart_is_refused(exchange: str) -> None:
    """Before anything is set up, with what would work instead, which does."""
    with pytest.raises(UserError, match=r"weights would drift apart; use .*, or all-reduce here$") as caught:
        on_threads(2, lambda comm: set_up(comm, f"gradient-average({exchange})"))
    advised = str(caught.value).partition("; use ")[2].removesuffix(", or all-reduce here")
    assert advised.startswith("model-average(")
    on_threads(2, lambda comm: set_up(comm, advised).close())


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
