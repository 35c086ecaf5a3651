"""The mean of all workers' models: what it is, what it sends, and that nothing is left of it afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn
from training import adam, batch_of, loss_of, momentum, normed_model, set_up, small_model, train, weights
from workers import SIZES, on_threads, on_torch

from tutti.algorithms.base import Algorithm
from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm, Lane
from tutti.engine import Run, distribute
from tutti.errors import UserError
from tutti.replica import Replica

# workers that differ: without buckets, with neighbours behind the step, and with an exchange under way between steps
DIFFERING = ("alone", "model-average(gossip(ring))", "model-average(gossip(ring), order=combine-first, bucket=0)")
EQUAL = ("ddp", "model-average(all-reduce(ring))", "ddp(update=bucket, wait=forward)")


@dataclass
class Apart(Algorithm):
    """Nobody talks to anybody."""

    equal: ClassVar[bool] = False
    buffers: ClassVar[Literal["broadcast", "average", "local"]] = "local"

    def setup(self, replica: Replica, lane: Lane) -> None:
        pass


class LocalBuffers(GradientAverage):
    buffers = "local"


def start(comm: Comm, algorithm: str | Algorithm, model: nn.Module | None = None) -> Run:
    model = normed_model() if model is None else model
    return set_up(comm, Apart() if algorithm == "alone" else algorithm, model)


def everything(run: Run) -> list[Tensor]:
    """All that a step depends on, as it is now."""
    model, optimizer = run.replica.model, run.replica.optimizer
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers(), *grads, *kept)]


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def mean_state(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    def mean(key: str) -> Tensor:
        each = torch.stack([state[key] for state in states])
        return each.mean(0) if each.is_floating_point() else each[0]

    return {key: mean(key) for key in states[0]}


# --- what it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", DIFFERING)
def test_it_is_the_mean_on_every_worker_and_gone_afterwards(algorithm: str, size: int) -> None:
    def work(comm: Comm) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with start(comm, algorithm) as run:
            train(run, range(3))
            before, own, places = everything(run), state_of(run.replica.model), _places(run)
            with run.consensus() as model:
                assert model is run.replica.model
                found = state_of(model)
            assert all(torch.equal(a, b) for a, b in zip(before, everything(run), strict=True))
            assert _places(run) == places, "and in the same memory"
            return own, found

    results = on_threads(size, work)
    expected = mean_state([own for own, _ in results])
    for _, found in results:
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)
        assert all(torch.equal(found[key], results[0][1][key]) for key in found), "the same bits on all workers"


def _places(run: Run) -> list[int]:
    return [tensor.data_ptr() for tensor in (*run.replica.model.parameters(), *run.replica.model.buffers())]


@pytest.mark.parametrize("algorithm", DIFFERING)
def test_looking_at_it_changes_nothing_of_what_comes(algorithm: str) -> None:
    """Between any two steps, and between forward and backward."""

    def work(comm: Comm, looks: bool) -> list[Tensor]:
        with start(comm, algorithm) as run:
            for step in range(4):
                run.replica.optimizer.zero_grad()
                loss = loss_of(run.model, batch_of(comm.rank, step))
                if looks:
                    evaluate(run)
                loss.backward()
                if looks:
                    run.consensus_distance()
                run.step()
                if looks:
                    run.consensus_state_dict()
            run.algorithm.drain()
            return everything(run)

    def evaluate(run: Run) -> None:
        with run.consensus() as model, torch.no_grad():
            model.eval()
            model(batch_of(9, 9)[0])
            model.train()

    for plain, looked in zip(
        on_threads(3, lambda comm: work(comm, False)), on_threads(3, lambda comm: work(comm, True)), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(plain, looked, strict=True))


def test_the_kinds_of_tensors_there_are() -> None:
    """Weights in another memory format or of half precision, empty ones, frozen ones; buffers that count."""

    class Odd(nn.Module):
        def __init__(self, rank: int) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.full((2, 3, 4, 4), rank + 1.0).to(memory_format=torch.channels_last))
            self.short = nn.Parameter(torch.full((5,), 30_000.0 + 32 * rank, dtype=torch.float16))
            self.none = nn.Parameter(torch.empty(0))
            self.frozen = nn.Parameter(torch.full((2,), 0.1), requires_grad=False)
            self.register_buffer("level", torch.full((3,), rank + 1.0, dtype=torch.float64))
            self.register_buffer("wave", torch.full((2,), rank * 1j))
            self.register_buffer("count", torch.tensor(rank))
            self.register_buffer("on", torch.tensor([rank == 0]))

    def work(comm: Comm) -> dict[str, Tensor]:
        model = Odd(0)
        run = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), Apart(), comm=comm)
        own = Odd(comm.rank)
        model.load_state_dict(own.state_dict())
        with run, run.consensus():
            assert model.image.is_contiguous(memory_format=torch.channels_last)
            found = state_of(model)
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), own.state_dict().values(), strict=True)
        )
        return found

    for found in on_threads(3, work):
        assert torch.equal(found["image"], torch.full((2, 3, 4, 4), 2.0))
        assert torch.equal(found["short"], torch.full((5,), 30_032.0, dtype=torch.float16)), (
            "their sum is no such number"
        )
        assert found["none"].shape == (0,)
        assert torch.equal(found["frozen"], torch.full((2,), 0.1)), "not even rounded"
        assert torch.equal(found["level"], torch.full((3,), 2.0, dtype=torch.float64))
        torch.testing.assert_close(found["wave"], torch.full((2,), 1j))
        assert (int(found["count"]), found["on"].tolist()) == (0, [True])


def test_what_was_trained_and_is_frozen_now_still_differs() -> None:
    def work(comm: Comm) -> tuple[Tensor, Tensor]:
        with start(comm, "model-average(gossip(ring))") as run:
            train(run, range(2))
            run.replica.model[0].requires_grad_(False)
            own = weights(run.model)
            with run.consensus() as model:
                return own, weights(model)

    results = on_threads(5, work)
    expected = torch.stack([own for own, _ in results]).mean(0)
    for _, found in results:
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


def test_weights_that_only_the_optimizer_knows_are_averaged_too() -> None:
    def work(comm: Comm) -> float:
        model, extra = small_model(), torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([*model.parameters(), extra], lr=1.0)
        with distribute(model, optimizer, Apart(), comm=comm) as run:
            extra.data.fill_(comm.rank)
            with run.consensus():
                return float(extra.detach())

    assert on_threads(3, work) == [1.0, 1.0, 1.0]


def test_the_mode_is_left_alone() -> None:
    def work(comm: Comm) -> None:
        with start(comm, "alone") as run:
            for training in (True, False):
                run.model.train(training)
                with run.consensus() as model:
                    assert model.training is training
                assert run.model.training is training

    on_threads(2, work)


def test_inference_mode_around_it() -> None:
    def work(comm: Comm) -> None:
        with start(comm, "alone") as run:
            train(run, range(1))
            before = everything(run)
            with torch.inference_mode(), run.consensus() as model:
                model(batch_of(0, 0)[0])
                run.consensus_distance()
            assert all(torch.equal(a, b) for a, b in zip(before, everything(run), strict=True))
            train(run, range(1, 2))

    on_threads(2, work)


# --- errors and misuse -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", DIFFERING)
def test_an_error_inside_leaves_the_worker_as_it_was(algorithm: str) -> None:
    def work(comm: Comm) -> None:
        with start(comm, algorithm) as run:
            train(run, range(2))
            before = everything(run)
            with pytest.raises(ZeroDivisionError):
                write_and_fail(run)
            assert all(torch.equal(a, b) for a, b in zip(before, everything(run), strict=True))
            train(run, range(2, 3))
            run.consensus_distance()

    def write_and_fail(run: Run) -> None:
        with run.consensus() as model, torch.no_grad():
            next(model.parameters()).fill_(7)
            raise ZeroDivisionError

    on_threads(3, work)


@pytest.mark.parametrize("algorithm", ["alone", "ddp"])
def test_a_worker_does_nothing_of_its_own_inside(algorithm: str) -> None:
    def work(comm: Comm) -> None:
        with start(comm, algorithm) as run:
            train(run, range(1))
            state = run.state_dict()
            uses: dict[str, Callable[[], Any]] = {
                "a step": run.step,
                r"run.state_dict\(\)": run.state_dict,
                "loading a state": lambda: run.load_state_dict(state),
            }
            for what, use in uses.items():
                with pytest.raises(UserError, match=rf"{what} inside run.consensus\(\)"), run.consensus():
                    use()
            train(run, range(1, 2))

    on_threads(2, work)


def test_a_backward_inside_is_refused() -> None:
    def work(comm: Comm) -> None:
        refused = pytest.raises(UserError, match=r"a backward inside run.consensus\(\)")
        with start(comm, "model-average(gossip(ring))") as run, refused, run.consensus() as model:
            loss_of(model, batch_of(0, 0)).backward()

    on_threads(2, work)


def test_one_within_another_is_the_same() -> None:
    def work(comm: Comm) -> None:
        with start(comm, "alone") as run:
            train(run, range(2))
            own = weights(run.model)
            with run.consensus() as model:
                mean = weights(model)
                with run.consensus() as again:
                    assert torch.equal(weights(again), mean)
                assert torch.equal(weights(model), mean)
            assert torch.equal(weights(run.model), own)

    on_threads(3, work)


# --- what is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", EQUAL)
def test_equal_workers_send_nothing_and_have_no_distance(algorithm: str) -> None:
    def work(comm: Comm) -> None:
        with start(comm, algorithm) as run:
            train(run, range(2))
            run.algorithm.drain()
            sent, own = run.meter.sent(), state_of(run.replica.model)
            with run.consensus() as model:
                found = state_of(model)
            assert run.consensus_distance() == 0.0
            run.consensus_state_dict()
            assert run.meter.sent() == sent
            assert all(torch.equal(own[key], found[key]) for key in own)

    on_threads(3, work)


def test_what_the_lane_has_not_updated_yet_is_waited_for() -> None:
    """With wait=forward a step is complete only in the next forward, or here."""

    def work(comm: Comm, algorithm: str) -> Tensor:
        with set_up(comm, algorithm, small_model()) as run:
            train(run, range(3))
            with run.consensus() as model:
                return weights(model)

    late, plain = (on_threads(2, lambda comm, a=a: work(comm, a)) for a in ("ddp(update=bucket, wait=forward)", "ddp"))
    assert torch.equal(late[1], plain[1])


def test_local_buffers_of_equal_workers_are_averaged_and_nothing_else_is_sent() -> None:
    def work(comm: Comm) -> tuple[Tensor, Tensor, float]:
        with start(comm, LocalBuffers()) as run:
            train(run, range(2))
            own, sent = run.model[1].running_var.clone(), run.meter.sent()
            with run.consensus() as model:
                return own, model[1].running_var.clone(), run.meter.sent() - sent

    results = on_threads(2, work)
    for _, found, sent in results:
        torch.testing.assert_close(found, torch.stack([own for own, _, _ in results]).mean(0), rtol=1e-13, atol=0)
        assert sent <= 8 * 8 + 8, "two workers: as many numbers as there are in the buffers"


def test_it_is_no_traffic_of_training() -> None:
    def work(comm: Comm) -> None:
        with start(comm, "model-average(gossip(ring))") as run:
            train(run, range(2))
            kinds = ("gradients", "weights", "buffers")
            sent, metrics = [run.meter.sent(kind) for kind in kinds], run.meter.sent("metrics")
            run.consensus_distance()
            assert [run.meter.sent(kind) for kind in kinds] == sent
            assert run.meter.sent("metrics") > metrics

    on_threads(3, work)


# --- distance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("inside", [False, True])
def test_the_distance(size: int, inside: bool) -> None:
    def work(comm: Comm) -> tuple[Tensor, float]:
        with start(comm, "alone") as run:
            train(run, range(3))
            own = weights(run.model)
            if not inside:
                return own, run.consensus_distance()
            with run.consensus():
                sent = run.meter.sent()
                found = run.consensus_distance()
                assert run.meter.sent() - sent <= 2 * 8 * comm.size, "the mean is there: one number goes round"
                return own, found

    results = on_threads(size, work)
    rows = torch.stack([own for own, _ in results])
    expected = float((rows - rows.mean(0)).norm(dim=1).square().mean().sqrt())
    for _, found in results:
        assert found == pytest.approx(expected, rel=1e-12)
    assert (expected > 0) == (size > 1)


def test_gossip_on_a_complete_graph_has_none_and_workers_apart_drift() -> None:
    def work(comm: Comm, algorithm: str) -> list[float]:
        with start(comm, algorithm, small_model()) as run:
            found = []
            for step in range(3):
                train(run, range(step, step + 1))
                found.append(run.consensus_distance())
            return found

    together = on_threads(4, lambda comm: work(comm, "model-average(gossip(complete))"))
    assert together[0] == pytest.approx([0, 0, 0], abs=1e-12)
    apart = on_threads(4, lambda comm: work(comm, "alone"))[0]
    assert 0 < apart[0] < apart[1] < apart[2]


# --- to be saved -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["alone", "ddp"])
def test_its_state_is_a_copy_that_a_plain_model_loads(algorithm: str) -> None:
    def work(comm: Comm) -> tuple[Tensor, Tensor]:
        with start(comm, algorithm) as run:
            train(run, range(2))
            state = run.consensus_state_dict()
            kept = copy.deepcopy(state)
            with run.consensus() as model, torch.no_grad():
                expected = model.eval()(batch_of(0, 5)[0])
            run.model.train()
            train(run, range(2, 3))
            assert all(torch.equal(state[key], kept[key]) for key in kept), "what comes does not reach it"
            assert all(value.untyped_storage().nbytes() == value.nbytes for value in state.values())
            plain = normed_model(seed=1)
            plain.load_state_dict(state)
            with torch.no_grad():
                return expected, plain.eval()(batch_of(0, 5)[0])

    for expected, found in on_threads(2, work):
        assert torch.equal(expected, found)


# --- other wires and optimizers --------------------------------------------------------------------------------------


def _over_torch(comm: Comm) -> tuple[list[float], list[float], float]:
    model = small_model()
    optimizer = adam(model)
    with distribute(model, optimizer, Apart(), comm=comm) as run:
        train(run, range(2))
        own = weights(model)
        with run.consensus():
            return own.tolist(), weights(model).tolist(), run.consensus_distance()


def test_over_processes_joined_by_gloo() -> None:
    results = on_torch(2, _over_torch)
    mean = [(a + b) / 2 for a, b in zip(results[0][0], results[1][0], strict=True)]
    for _, found, distance in results:
        assert found == pytest.approx(mean, rel=1e-12)
        assert distance == pytest.approx(results[0][2], rel=1e-12)
        assert distance > 0


def test_in_strict_mode() -> None:
    def work(comm: Comm) -> float:
        with set_up(comm, "model-average(gossip(ring), order=combine-first)", normed_model(), momentum) as run:
            train(run, range(2))
            run.consensus_state_dict()
            return run.consensus_distance()

    assert len(set(on_threads(5, work, strict=True))) == 1
