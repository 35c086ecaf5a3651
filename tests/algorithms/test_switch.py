"""One algorithm first, another one later: each to the bit what it is alone, and all workers change behind one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from contracts.test_algorithms import DECAY, LR, MOMENTUM, STEPS, Array, data, gradient, linear, start, textbook
from switches import AT, END, OnItsOwn, Optimizer, current, set_rate, switched, train_and_look
from torch import Tensor, nn
from torch.nn import functional
from training import (
    Forked,
    adam,
    batch_of,
    distribute,
    momentum,
    normed_model,
    set_up,
    small_model,
    train,
    train_alone,
    weights,
)
from workers import SIZES, on_threads

from tutti.algorithms.base import Algorithm
from tutti.algorithms.gradient_average import GradientAverage
from tutti.algorithms.switch import Switch
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.engine import Run
from tutti.errors import UserError
from tutti.spec import parse

# --- before and behind -----------------------------------------------------------------------------------------------

EQUAL = [
    "ddp",
    "gradient-average(bucket=80B, update=bucket)",
    "gradient-average(bucket=0, update=bucket, wait=forward)",
    "gradient-average(bucket=0, overlap=false)",
]
OTHERS = [
    "ddp",
    "gradient-average(bucket=48B, update=bucket, wait=forward)",
    "model-average(bucket=0)",
    "update-average(relay(chain, missing=initial))",
    "d-psgd",
    "model-average(gossip(ring), bucket=0, order=combine-first)",
    "model-average(relay(double-binary-tree, missing=initial), bucket=48B, update=bucket)",
    "sgp",
]


def one_after_another(comm: Comm, one: str, other: str, optimizer: Optimizer) -> list[Tensor]:
    """Two runs in a row on one model and one optimizer."""
    model = small_model()
    chosen = optimizer(model)
    with distribute(model, chosen, one, comm=comm) as run:
        found = train_and_look(run, range(AT))
    with distribute(model, chosen, other, comm=comm) as run:
        run.replica.load_steps(AT, [])
        return found + train_and_look(run, range(AT, END))


def check_beside_two_runs(size: int, one: str, other: str, optimizer: Optimizer, strict: bool = False) -> None:
    expected = on_threads(size, lambda comm: one_after_another(comm, one, other, optimizer))
    found = on_threads(size, lambda comm: switched(comm, one, other, optimizer), strict=strict)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("one", "other"), [*zip(EQUAL * 2, OTHERS, strict=True), *zip(EQUAL, OTHERS[1:], strict=False)]
)
def test_from_equal_workers_it_is_two_runs_in_a_row_to_the_bit(one: str, other: str) -> None:
    check_beside_two_runs(3, one, other, momentum)


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("size", SIZES)
def test_on_any_number_of_workers(size: int, optimizer: Optimizer, strict: bool) -> None:
    check_beside_two_runs(size, "ddp(bucket=0)", "model-average(gossip(ring), bucket=48B)", optimizer, strict)


@pytest.mark.parametrize("other", ["d-psgd", "relay-sgd", "sgp", "update-average(relay(chain))"])
def test_from_different_workers_each_goes_on_from_where_it_is(other: str) -> None:
    """If the other one lets them differ too; the second run starts with worker 0's weights, so they are put back."""

    def two_runs(comm: Comm) -> list[Tensor]:
        model = small_model()
        optimizer = momentum(model)
        with distribute(model, optimizer, OnItsOwn(), comm=comm) as run:
            found = train_and_look(run, range(AT))
            kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with distribute(model, optimizer, other, comm=comm) as run:
            model.load_state_dict(kept)
            run.replica.load_steps(AT, [])
            return found + train_and_look(run, range(AT, END))

    def one_run(comm: Comm) -> list[Tensor]:
        with set_up(comm, Switch(AT, OnItsOwn(), parse(other, Algorithm))) as run:
            return train_and_look(run, range(END))

    for ours, theirs in zip(on_threads(5, one_run), on_threads(5, two_runs), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("algorithm", ["ddp", "d-psgd"])
def test_from_an_algorithm_without_memory_to_itself_nothing_changes(algorithm: str) -> None:
    def work(comm: Comm, spec: str) -> list[Tensor]:
        with set_up(comm, spec) as run:
            return train_and_look(run, range(END))

    specs = (algorithm, f"switch({AT}, {algorithm}, {algorithm})")
    plain, ours = (on_threads(4, lambda comm, spec=spec: work(comm, spec)) for spec in specs)
    assert np.array_equal(np.array(plain), np.array(ours))


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_alone_it_is_ordinary_training(optimizer: Optimizer) -> None:
    plain = small_model()
    train_alone(plain, optimizer(plain), [batch_of(0, step) for step in range(END)])
    with set_up(World(1).comm(0), f"switch({AT}, ddp, model-average(bucket=0))", optimizer=optimizer) as run:
        train(run, range(END))
        assert torch.equal(weights(run.model), weights(plain))


# --- equal workers ---------------------------------------------------------------------------------------------------


def averaged_in_the_middle(size: int, at: int) -> list[list[Array]]:
    """By hand: n workers each for itself; the mean of weights and velocities; then one step with the mean gradient."""
    matrices, velocities, found = [start()] * size, [np.zeros_like(start())] * size, []
    for step in range(STEPS):
        grads = [gradient(matrices[worker], *data(worker, step, 4)) for worker in range(size)]
        if step >= at:
            grads = [sum(grads) / size] * size
        velocities = [MOMENTUM * v + g + DECAY * x for v, g, x in zip(velocities, grads, matrices, strict=True)]
        matrices = [x - LR * v for x, v in zip(matrices, velocities, strict=True)]
        if step == at - 1:
            matrices, velocities = [sum(matrices) / size] * size, [sum(velocities) / size] * size
        found.append(matrices)
    return found


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_different_workers_start_the_other_one_equal(size: int, at: int, strict: bool) -> None:
    def work(comm: Comm) -> list[Array]:
        matrices = []
        with set_up(comm, Switch(at, OnItsOwn(), GradientAverage(bucket=48)), linear(), textbook) as run:
            for step in range(STEPS):
                inputs, targets = (torch.from_numpy(a) for a in data(comm.rank, step, 4))
                run.replica.optimizer.zero_grad()
                functional.mse_loss(run.model(inputs), targets).backward()
                run.step()
                matrices.append(torch.vstack([run.model.weight.detach().t(), run.model.bias.detach()]).numpy().copy())
        return matrices

    expected = averaged_in_the_middle(size, at)
    found = on_threads(size, work, strict=strict)
    for worker, matrices in enumerate(found):
        np.testing.assert_allclose(matrices, [row[worker] for row in expected], rtol=1e-11, atol=1e-13)
        assert np.array_equal(matrices[at - 1 :], found[0][at - 1 :]), "from the switch on all are equal, bit by bit"


@pytest.mark.parametrize("one", ["d-psgd", "relay-sgd", "model-average", "update-average", "sgp"])
@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_whatever_was_first_workers_stay_equal_with_gradient_averaging(one: str, optimizer: Optimizer) -> None:
    """Model averaging too leaves every worker with a momentum of its own."""
    found = on_threads(3, lambda comm: switched(comm, one, "ddp", optimizer))
    for rows in found:
        assert all(torch.equal(a, b) for a, b in zip(rows[AT - 1 :], found[0][AT - 1 :], strict=True))


def test_what_is_equal_already_is_not_sent() -> None:
    def work(comm: Comm) -> tuple[float, float]:
        with set_up(comm, f"switch({AT}, ddp, ddp)") as run:
            begun = run.meter.sent("weights")  # the starting weights
            train(run, range(END))
            return begun, run.meter.sent("weights")

    for begun, ended in on_threads(3, work):
        assert begun == ended


def test_floating_buffers_are_averaged_and_counters_are_not() -> None:
    def work(comm: Comm) -> tuple[Tensor, Tensor, int]:
        with set_up(comm, Switch(2, OnItsOwn(), GradientAverage()), normed_model()) as run:
            train(run, range(1))
            if comm.rank == 1:
                run.model[1].num_batches_tracked += 5
                run.model(batch_of(7, 7)[0])
            own = run.model[1].running_mean.clone()
            run.replica.optimizer.zero_grad()
            run.step()
            return own, run.model[1].running_mean.clone(), int(run.model[1].num_batches_tracked)

    results = on_threads(3, work)
    expected = torch.stack([own for own, _, _ in results]).mean(0)
    for own, found, _ in results:
        assert not torch.allclose(own, expected, rtol=1e-3)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
        assert torch.equal(found, results[0][1])
    assert [count for _, _, count in results] == [1, 7, 1]


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_an_optimizer_that_has_not_seen_a_parameter_yet_counts_as_zero(optimizer: Optimizer) -> None:
    def work(comm: Comm) -> tuple[dict[int, Any], dict[int, Any], Tensor]:
        model = Forked()
        model.branch = "odd" if comm.rank else "even"
        with set_up(comm, Switch(2, OnItsOwn(), GradientAverage()), model, optimizer) as run:
            train(run, range(1))
            before = run.replica.optimizer.state_dict()["state"]
            before = {i: {k: v.clone() for k, v in state.items()} for i, state in before.items()}
            run.replica.optimizer.zero_grad()
            run.step()  # with no gradient: nothing but the switch
            after = run.replica.optimizer.state_dict()["state"]
            after = {i: {k: v.clone() for k, v in state.items()} for i, state in after.items()}
            train(run, range(2, 4))
            return before, after, weights(run.model)

    results = on_threads(2, work)
    key = "momentum_buffer" if optimizer is momentum else "exp_avg"
    assert [sorted(before) for before, _, _ in results] == [[0, 1, 2, 3], [0, 1, 4, 5]]
    for _, after, model in results:
        assert torch.equal(after[2][key], results[0][0][2][key] / 2)
        torch.testing.assert_close(after[0][key], (results[0][0][0][key] + results[1][0][0][key]) / 2)
        assert 6 not in after, "what nobody has seen"
        assert torch.equal(model, results[0][2])


def test_layouts_in_memory_and_single_precision() -> None:
    """The mean is computed in double precision, and a transposed weight stays one."""

    def work(comm: Comm) -> tuple[Tensor, Tensor]:
        model = small_model(dtype=torch.float32)
        model[0].weight = nn.Parameter(torch.ones(3, 4).t())
        with set_up(comm, Switch(1, OnItsOwn(), GradientAverage()), model) as run:
            with torch.no_grad():
                model[0].weight += torch.arange(12.0).view(4, 3) * (comm.rank + 1)
                model[2].weight.fill_(0.1 * comm.size)
            run.step()
            assert model[0].weight.stride() == (1, 4)
            return model[0].weight.detach().clone(), model[2].weight.detach().clone()

    for turned, same in on_threads(3, work):
        assert torch.equal(turned, 1 + torch.arange(12.0).view(4, 3) * 2)
        assert torch.equal(same, torch.full((2, 4), 0.1 * 3))


# --- when ------------------------------------------------------------------------------------------------------------


def watch(comm: Comm, algorithm: str, before_step: Callable[[Run, int], None], steps: int = 8) -> int | None:
    """Behind which step this worker has switched, counted from 1."""
    with set_up(comm, algorithm) as run:
        assert isinstance(run.algorithm, Switch)
        for step in range(steps):
            before_step(run, step)
            train(run, range(step, step + 1))
            if run.algorithm.switched:
                return step + 1
    return None


def do_nothing(run: Run, step: int) -> None:
    pass


@pytest.mark.parametrize("at", [1, 4])
def test_at_a_step_the_first_one_makes_so_many(at: int) -> None:
    found = on_threads(2, lambda comm: watch(comm, f"switch({at}, ddp, d-psgd)", do_nothing))
    assert found == [at, at]


@pytest.mark.parametrize("size", SIZES)
def test_at_the_first_decay_of_the_learning_rate(size: int) -> None:
    """Warming up is none, nor is half of the largest, but less than half is."""
    rates = [0.01, 0.05, 0.1, 0.06, 0.05, 0.049, 0.1, 0.1]
    found = on_threads(
        size, lambda comm: watch(comm, "switch(lr-decay, ddp, d-psgd)", lambda run, i: set_rate(run, rates[i]))
    )
    assert found == [6] * size


def test_the_learning_rate_is_the_largest_of_all_groups() -> None:
    model = small_model()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": torch.tensor(1.0)}]
    with distribute(model, torch.optim.SGD(groups), "switch(lr-decay, ddp, d-psgd)", comm=World(1).comm(0)) as run:
        train(run, range(1))
        run.replica.optimizer.param_groups[0]["lr"] = 0.001
        train(run, range(1))
        assert current(run).name == "gradient-average"
        run.replica.optimizer.param_groups[1]["lr"].fill_(0.4)
        train(run, range(1))
        assert current(run).name == "model-average"


@pytest.mark.parametrize(
    ("size", "one", "strict"),
    [
        *((size, "ddp", True) for size in (2, 3, 5, 8)),
        (3, "ddp", False),
        (3, "gradient-average(bucket=0, update=bucket, wait=forward)", False),
        (3, "model-average(gossip(ring), order=combine-first)", False),
    ],
)
def test_workers_that_disagree_switch_together_as_soon_as_one_wants_it(size: int, one: str, strict: bool) -> None:
    def decay(run: Run, step: int) -> None:
        set_rate(run, 0.01 if step >= 2 + 2 * (run.rank != size - 1) else 0.1)

    def ask(run: Run, step: int) -> None:
        if step == 3 and run.rank == size - 1:
            run.algorithm.ask()

    for at, wish, expected in [("lr-decay", decay, 3), ("asked", ask, 4)]:
        spec = f"switch({at}, {one}, d-psgd)"
        found = on_threads(size, lambda c, spec=spec, wish=wish: watch(c, spec, wish), strict=strict)
        assert found == [expected] * size


def test_nobody_asks_and_nothing_happens() -> None:
    assert on_threads(2, lambda comm: watch(comm, "switch(asked, ddp, d-psgd)", do_nothing)) == [None] * 2


def test_asking_again_after_the_switch_is_no_error() -> None:
    def work(comm: Comm) -> str:
        with set_up(comm, "switch(asked, ddp, d-psgd)") as run:
            for step in range(4):
                if step >= comm.rank:
                    run.algorithm.ask()
                train(run, range(step, step + 1))
            return current(run).name

    assert on_threads(3, work) == ["model-average"] * 3


def test_asking_one_that_switches_by_itself_is_refused_in_a_sentence() -> None:
    with set_up(World(1).comm(0), "switch(5, ddp, d-psgd)") as run, pytest.raises(UserError) as refused:
        run.algorithm.ask()
    assert str(refused.value) == (
        "'switch(5, other=model-average(gossip(ring)))' switches by itself; "
        "write switch(asked, ...) for a run that asks for it"
    )


@pytest.mark.parametrize(("at", "before"), [("5", 0), ("asked", 2), ("lr-decay", 2)])
def test_conditions_cost_a_byte_to_everybody_until_the_switch(at: str, before: int) -> None:
    def work(comm: Comm) -> list[float]:
        with set_up(comm, f"switch({at}, ddp, ddp)") as run:
            train(run, range(1))
            sent = []
            for step in range(1, 7):
                if at == "asked" and step == 4:
                    run.algorithm.ask()
                if at == "lr-decay" and step == 4:
                    set_rate(run, 0.01)
                begun = run.meter.sent("control")
                train(run, range(step, step + 1))
                sent.append(run.meter.sent("control") - begun)
            return sent

    for sent in on_threads(3, work):
        assert sent[:3] == [before] * 3
        assert sent[3] > before, "the switch itself compares what all hold"
        assert sent[4:] == [0, 0]
