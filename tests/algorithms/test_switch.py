"""One algorithm first, another one later: each to the bit what it is alone, and all workers change behind one step."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from algorithms.test_model_average import FromElsewhere
from contracts.test_algorithms import DECAY, LR, MOMENTUM, STEPS, Array, data, gradient, linear, start, textbook
from fake_clock import FakeClock
from torch import Tensor, nn
from torch.nn import functional
from training import (
    Forked,
    adam,
    batch_of,
    distribute,
    gradients,
    loss_of,
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
from tutti.comm.base import Comm, Lane
from tutti.comm.threads import World
from tutti.engine import Run
from tutti.errors import UserError
from tutti.launch import LaunchOptions, launch
from tutti.replica import Replica
from tutti.spec import SpecError, parse
from tutti.train import Plan
from tutti.train import train as train_task

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass
class OnItsOwn(Algorithm):
    """Every worker trains for itself."""

    equal: ClassVar[bool] = False
    buffers: ClassVar[Literal["broadcast", "average", "local"]] = "local"

    def setup(self, replica: Replica, lane: Lane) -> None:
        replica.make_buckets(0, self.on_bucket)


def current(run: Run) -> Algorithm:
    assert isinstance(run.algorithm, Switch)
    return run.algorithm.current


def train_and_look(run: Run, steps: range) -> list[Tensor]:
    """The weights after every step."""
    found = []
    for step in steps:
        train(run, range(step, step + 1))
        run.algorithm.drain()
        found.append(weights(run.replica.model))
    return found


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
AT, END = 3, 6


def one_after_another(comm: Comm, one: str, other: str, optimizer: Optimizer) -> list[Tensor]:
    """Two runs in a row on one model and one optimizer."""
    model = small_model()
    chosen = optimizer(model)
    with distribute(model, chosen, one, comm=comm) as run:
        found = train_and_look(run, range(AT))
    with distribute(model, chosen, other, comm=comm) as run:
        run.replica.steps = AT
        return found + train_and_look(run, range(AT, END))


def switched(comm: Comm, one: str, other: str, optimizer: Optimizer) -> list[Tensor]:
    with set_up(comm, f"switch({AT}, {one}, {other})", optimizer=optimizer) as run:
        return train_and_look(run, range(END))


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
            run.replica.steps = AT
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


def set_rate(run: Run, rate: float) -> None:
    run.replica.optimizer.param_groups[0]["lr"] = rate


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
    with set_up(World(1).comm(0), "switch(40, ddp, ddp(bucket=auto))") as run:
        train(run, range(39))
        assert run.algorithm.choices() == {"to switch": "never"}
        train(run, range(1))
        state = run.state_dict()
        assert run.algorithm.choices() == {"to switch": "behind step 40"}
        train(run, range(40))
        assert list(run.algorithm.choices()) == ["to switch", "bucket"]
    with set_up(World(1).comm(0), "switch(40, ddp, ddp(bucket=auto))") as run:
        run.load_state_dict(state)
        assert run.algorithm.choices() == {"to switch": "behind step 40"}


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
