"""Workers that are not what the algorithm says they are: found at the next check, and named on all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import adam, batch_of, loss_of, momentum, normed_model, set_up, small_model, train
from workers import on_threads

from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.engine import Run, distribute
from tutti.errors import Desynchronised, Diverged, RunFailed, UserError
from tutti.guard import EVERY, read_interval
from tutti.presets import PRESETS

KEEPS = ["ddp", "ddp(update=bucket, wait=forward)", "ring", "update-average"]  # a difference, once it is there
OTHERS = ["ddp(bucket=auto)", "allreduce-model(update=bucket)", "switch(4)", "switch(4, d-psgd, ddp)", "d2"]


def guarded(comm: Comm, algorithm: str = "ddp", guard: Any = 1, optimizer: Any = momentum) -> Run:
    model = small_model()
    return distribute(model, optimizer(model), algorithm, comm=comm, guard=guard)


def said_by_all(size: int, work: Any, kind: type[RunFailed] = Diverged, **world: Any) -> str:
    """What all workers raise; the same on all."""

    def catch(comm: Comm) -> str:
        with pytest.raises(kind) as caught:
            work(comm)
        return str(caught.value)

    (sentence,) = set(on_threads(size, catch, **world))
    return sentence


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("algorithm", KEEPS)
def test_weights_changed_by_hand_on_one_worker_are_named(algorithm: str, strict: bool) -> None:
    def work(comm: Comm) -> None:
        with guarded(comm, algorithm) as run:
            train(run, range(3))
            if comm.rank == 2:
                run.algorithm.drain()
                run.replica.model[2].bias.data[1] += 1e-3
            train(run, range(3, 6))

    sentence = said_by_all(3, work, strict=strict)
    assert sentence == "weights differ between workers 0 and 2 since step 3: '2.bias'"


def test_a_parameter_replaced_on_one_worker_only_is_named() -> None:
    """That worker wants to take it in together with the others, who have nothing to take in."""

    def work(comm: Comm) -> None:
        with guarded(comm) as run:
            train(run, range(2))
            if comm.rank == 1:
                weight = run.replica.model[0].weight
                weight.data = weight.data.clone() * 2
            train(run, range(2, 4))

    sentence = said_by_all(2, work, Desynchronised)
    assert "worker 0 waits in backward (operation 5, step 3)" in sentence
    assert "worker 1 waits in taking in changed parameters (operation 5, step 3)" in sentence


def test_a_frozen_parameter_is_compared_too() -> None:
    def work(comm: Comm) -> None:
        model = small_model()
        model[0].bias.requires_grad_(False)
        with distribute(model, momentum(model), comm=comm, guard=1) as run:
            train(run, range(1))
            if comm.rank == 1:
                model[0].bias.data.zero_()
            train(run, range(1, 2))

    assert said_by_all(2, work) == "weights differ between workers 0 and 1 since step 1: '0.bias'"


@pytest.mark.parametrize(("optimizer", "key"), [(momentum, "momentum_buffer"), (adam, "exp_avg")])
def test_optimizer_state_that_differs_is_named(optimizer: Any, key: str) -> None:
    def work(comm: Comm) -> None:
        with guarded(comm, optimizer=optimizer) as run:
            train(run, range(2))
            if comm.rank == 1:
                run.replica.optimizer.state[run.replica.model[2].weight][key].mul_(1.5)
            for group in run.replica.optimizer.param_groups:
                group["lr"] = 0.0  # the weights stay equal
            train(run, range(2, 3))

    sentence = said_by_all(3, work)
    assert sentence == f"optimizer state differs between workers 0 and 1 since step 2: '{key}' of '2.weight'"


@pytest.mark.parametrize("strict", [False, True])
def test_operations_whose_messages_fit_are_told_apart(strict: bool) -> None:
    """The messages of `mean` and `any` look the same: each worker takes the other's for its own, and goes on."""

    def work(comm: Comm) -> None:
        with guarded(comm, guard=3) as run:
            train(run, range(2))
            first, second = (run.any, run.mean) if comm.rank == 1 else (run.mean, run.any)
            first(True)
            second(True)
            train(run, range(2, 3))

    sentence = said_by_all(2, work, Desynchronised, strict=strict)
    assert sentence == (
        "worker 0 called mean() (operation 5, after step 2) where worker 1 called any() (operation 5, after step 2): "
        "all workers must call the same operations in the same order"
    )


def test_workers_that_differ_compare_operations_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch sends them and says what it found in the next wait."""
    monkeypatch.setattr("tutti.watch.TICK", 0.05)

    def work(comm: Comm) -> None:
        with guarded(comm, "d-psgd", guard=1) as run:
            (run.any if comm.rank == 1 else run.mean)(True)
            for step in range(10_000):
                train(run, range(step, step + 1))

    sentence = said_by_all(2, work, Desynchronised)
    assert sentence.startswith("worker 0 called mean() (operation 1, after step 0) where worker 1 called any()")


def test_the_first_check_is_after_the_first_step_and_then_every_so_many() -> None:
    def work(comm: Comm) -> list[float]:
        sent = []
        with guarded(comm, guard=3) as run:
            for step in range(7):
                before = run.meter.sent("control")
                train(run, range(step, step + 1))
                sent.append(run.meter.sent("control") - before)
        return sent

    for sent in on_threads(2, work):
        assert [step for step, nbytes in enumerate(sent, start=1) if nbytes > 0] == [1, 3, 6]
        assert sent[2] == 32, "four numbers to the other worker"


def test_the_guard_can_be_switched_off() -> None:
    def work(comm: Comm) -> None:
        with guarded(comm, guard=False) as run:
            assert run._watch is None
            train(run, range(1))
            if comm.rank == 1:
                run.replica.model[2].bias.data.add_(1)
            train(run, range(1, 3))

    on_threads(2, work)


@pytest.mark.parametrize("guard", [0, -1, 1.5, "yes", None])
def test_a_wrong_interval_is_one_sentence(guard: Any) -> None:
    with pytest.raises(UserError, match="guard must be True, False or a number of steps from 1 on, not"):
        read_interval(guard)


def test_intervals() -> None:
    assert [read_interval(guard) for guard in (True, False, 1, 250)] == [EVERY, 0, 1, 250]


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("algorithm", [*PRESETS, *KEEPS[1:], *OTHERS, "gradient-tracking"])
def test_healthy_runs_are_never_accused(algorithm: str, size: int) -> None:
    def work(comm: Comm) -> None:
        model = normed_model()
        with distribute(model, momentum(model), algorithm, comm=comm, guard=1) as run:
            for step in range(8):
                run.replica.optimizer.zero_grad()
                loss = loss_of(run.model, batch_of(run.rank, step))
                if (comm.rank, step) != (1, 3) or "bucket" in algorithm:  # this worker has no backward in one step
                    loss.backward()
                run.step()
                if step % 3 == 1:
                    assert run.any(True)
                    with run.consensus() as mean:
                        mean(batch_of(0, 0)[0])
                    run.consensus_distance()
            run.consensus_state_dict()
            run.load_state_dict(run.state_dict())
            train(run, range(8, 10))
            run._guard.check()

    on_threads(size, work)


def test_the_state_of_adam_is_equal_where_gradients_are() -> None:
    def work(comm: Comm) -> None:
        with guarded(comm, "ddp", optimizer=adam) as run:
            train(run, range(4))

    on_threads(3, work)


# --- before the start ------------------------------------------------------------------------------------------------


def refused(build: Any) -> str:
    def work(comm: Comm) -> str:
        with pytest.raises(UserError) as caught:
            build(comm)
        return str(caught.value)

    (sentence,) = set(on_threads(3, work))
    return sentence


def test_different_specs_are_named() -> None:
    sentence = refused(lambda comm: set_up(comm, "d-psgd" if comm.rank == 2 else "ddp"))
    assert sentence == "worker 2 runs 'd-psgd' and worker 0 runs 'ddp': all must do the same"


def test_different_optimizers_are_named() -> None:
    sentence = refused(lambda comm: set_up(comm, optimizer=adam if comm.rank == 1 else momentum))
    assert sentence == "worker 1 steps with Adam and worker 0 steps with SGD: all must do the same"


def test_different_numbers_of_groups_are_named() -> None:
    def two(model: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)

    sentence = refused(lambda comm: set_up(comm, optimizer=two if comm.rank == 1 else momentum))
    assert sentence == "worker 1 has 4 parameter groups and worker 0 has 1 parameter groups: all must do the same"


def test_different_guards_are_named() -> None:
    sentence = refused(lambda comm: guarded(comm, guard=comm.rank != 1))
    assert (
        sentence
        == "worker 1 compares nothing (guard=False) and worker 0 compares every 100 steps: all must do the same"
    )


def test_workers_that_end_earlier_are_not_accused() -> None:
    """Inside run.join() a worker whose loop has ended holds old weights until the block ends."""

    def work(comm: Comm) -> None:
        with guarded(comm, optimizer=adam) as run:
            with run.join():
                train(run, range(2 + 2 * comm.rank))
            train(run, range(6, 8))

    on_threads(3, work)


def test_settings_that_differ_are_named_at_once() -> None:
    def work(comm: Comm) -> None:
        rate = 0.1 if comm.rank == 0 else 0.2
        model = small_model()
        distribute(model, torch.optim.SGD(model.parameters(), lr=rate), "ddp", comm=comm)

    with pytest.raises(UserError, match=r"worker 1 has lr = 0\.2 and worker 0 has lr = 0\.1: all must do the same"):
        on_threads(2, work)


def test_a_checkpoint_of_workers_that_differ_is_not_written(tmp_path: Path) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm, "ddp") as run:
            train(run, range(2))
            if comm.rank == 1:
                with torch.no_grad():
                    run.replica.model[0].bias += 1
            run.save(tmp_path)

    with pytest.raises(Diverged, match="weights differ between workers 0 and 1 since step"):
        on_threads(2, work)
    assert not any(tmp_path.iterdir())


def test_a_loop_that_forgets_to_step_is_reminded() -> None:
    with set_up(World(1).comm(0), "ddp") as run:
        for step in range(19):
            loss_of(run.model, batch_of(0, step)).backward()
        with pytest.warns(match=r"20 backwards and no run.step\(\) yet"):
            loss_of(run.model, batch_of(0, 19)).backward()
