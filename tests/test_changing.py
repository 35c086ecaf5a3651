"""What is trained changes in mid-run: all workers take it in, and train on as one worker on the whole batch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from changing import CHANGES, change_all, changed, changed_alone
from launching import ignore, options
from torch import Tensor, nn
from training import adam, batch_of, joint_batch, loss_of, momentum, seeded, set_up, small_model, train, weights
from workers import on_threads

from tutti.changes import Change
from tutti.comm.base import Comm
from tutti.engine import distribute
from tutti.errors import UserError
from tutti.launch import launch

LATE = "ddp(bucket=0, update=bucket, wait=forward)"
# on three workers a ring of neighbours is everybody, so D-PSGD is the mean of all as well
SPECS = [
    "ddp(bucket=48B)",
    "ddp(bucket=0, overlap=false)",
    "ddp(bucket=48B, update=bucket)",
    LATE,
    "model-average(bucket=48B)",
    "model-average(bucket=48B, update=bucket)",
    "update-average(all-reduce, bucket=0)",
    "d-psgd",
]


MOVED = ("vector_to_parameters", "there and back to another type", "another type")


@pytest.mark.parametrize("name", MOVED)
def test_weights_that_may_be_under_way_cannot_be_replaced(name: str) -> None:
    with pytest.raises(UserError, match=r"'0.weight' has other memory.* under way \(wait=forward\); use wait=backward"):
        on_threads(2, lambda comm: changed(comm, LATE, name))


@pytest.mark.parametrize(
    ("spec", "name"), [(s, n) for s in SPECS for n in CHANGES if (s, n) not in [(LATE, moved) for moved in MOVED]]
)
def test_a_change_in_mid_run(spec: str, name: str) -> None:
    expected = changed_alone(3, name)
    for found in on_threads(3, lambda comm: changed(comm, spec, name)):
        tight = expected.dtype == torch.float64 and name != "there and back to another type"
        torch.testing.assert_close(found, expected, rtol=1e-10 if tight else 1e-5, atol=0 if tight else 1e-6)


@pytest.mark.parametrize("spec", ["ddp", "ddp(update=bucket)", "model-average", "d-psgd"])
def test_on_one_worker(spec: str) -> None:
    for name in CHANGES:
        torch.testing.assert_close(
            on_threads(1, lambda comm, n=name: changed(comm, spec, n))[0], changed_alone(1, name)
        )


@pytest.mark.parametrize("spec", ["ddp(bucket=48B)", "model-average(bucket=48B)", "d-psgd"])
def test_a_group_that_comes_between_backward_and_step_takes_part_in_that_step(spec: str) -> None:
    expected = changed_alone(3, "a parameter group is added", late=True)
    for found in on_threads(3, lambda comm: changed(comm, spec, "a parameter group is added", late=True)):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def test_over_real_processes() -> None:
    rows = launch(change_all, (("ddp", "model-average", "ddp(update=bucket)"),), options(2), ignore)
    assert len(rows) == 3 * len(CHANGES)
    for spec, name, found in rows:
        expected = changed_alone(2, name).numpy()
        for each in found:
            np.testing.assert_allclose(
                np.frombuffer(each, expected.dtype), expected, rtol=1e-5, atol=1e-6, err_msg=f"{spec}: {name}"
            )


@pytest.mark.parametrize("spec", ["relay-sgd", "d2", "gradient-tracking", "sgp", "d-psgd-overlap", "relay-sgd-grad"])
def test_what_is_new_is_trained_where_workers_differ(spec: str) -> None:
    """The new head starts equal and learns; the others' weights stay each worker's own."""

    def work(comm: Comm) -> tuple[torch.Tensor, float, float]:
        with set_up(comm, spec) as run:
            train(run, range(3))
            model = run.replica.model
            assert isinstance(model, nn.Sequential)
            own = weights(model[0])
            with seeded(100 + comm.rank):
                model[2] = nn.Linear(4, 2).double()
            run.replica.optimizer.add_param_group({"params": list(model[2].parameters())})
            first = loss_of(model, batch_of(0, 50)).item()
            run._take_in(Change("a test"))
            assert torch.equal(own, weights(model[0])) or spec == "d-psgd-overlap"
            head = weights(model[2])
            train(run, range(3, 30))
            return head, first, loss_of(model, batch_of(0, 50)).item()

    results = on_threads(3, work)
    assert all(torch.equal(head, results[0][0]) for head, _, _ in results)
    assert all(last < first for _, first, last in results)


def test_nothing_is_set_up_again_where_nothing_has_changed() -> None:
    def work(comm: Comm) -> list[int]:
        with set_up(comm, "ddp", optimizer=adam) as run:
            before = [id(bucket) for bucket in run.replica.buckets]
            train(run, range(3))
            run.load_state_dict(run.state_dict())
            for parameter in run.replica.model.parameters():
                parameter.requires_grad_(False)
            for parameter in run.replica.model.parameters():
                parameter.requires_grad_(True)
            train(run, range(3, 5))
            return [id(bucket) == old for bucket, old in zip(run.replica.buckets, before, strict=True)]

    assert all(all(same) for same in on_threads(2, work))


@pytest.mark.parametrize("spec", ["switch(lr-decay, d-psgd, ddp)", "switch(2, d-psgd, ddp)"])
def test_what_has_switched_stays_switched(spec: str) -> None:
    """Also behind its first step after the change, which would be the first one's."""

    def work(comm: Comm) -> Tensor:
        with set_up(comm, spec) as run:
            train(run, range(2))
            run.replica.optimizer.param_groups[0]["lr"] = 0.01
            train(run, range(2, 4))
            begin = weights(run.model)
            head = run.model[2].weight
            head.data = head.data.clone()
            run.model.zero_grad()
            loss_of(run.model, batch_of(comm.rank, 4)).backward()
            assert str(run.algorithm.current) == "gradient-average(all-reduce(ring))"
            run.step()
            return weights(run.model) - begin

    moves = on_threads(4, work)
    assert all(torch.equal(move, moves[0]) for move in moves)


@pytest.mark.parametrize("spec", ["allreduce-model", "gradient-average(update=bucket)", "ddp"])
def test_cut_where_it_lies(spec: str) -> None:
    """Fewer rows at the same address, as structured pruning leaves them."""

    def cut(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        for parameter in model[2].parameters():
            parameter.data, parameter.grad = parameter.data[:1], None
        optimizer.state.clear()

    def learn(model: nn.Sequential, optimizer: torch.optim.Optimizer, batch: Any, step: Any) -> Tensor:
        for number in range(4):
            if number == 2:
                cut(model, optimizer)
            optimizer.zero_grad()
            inputs, targets = batch(number)
            loss_of(model, (inputs, targets[:, : len(model[2].bias)])).backward()
            step()
        return weights(model)

    def work(comm: Comm) -> Tensor:
        with set_up(comm, spec) as run:
            return learn(run.replica.model, run.replica.optimizer, lambda n: batch_of(comm.rank, n), run.step)

    model = small_model()
    optimizer = momentum(model)
    alone = learn(model, optimizer, lambda n: joint_batch(2, n), optimizer.step)
    for each in on_threads(2, work):
        assert torch.allclose(each, alone, rtol=0, atol=1e-14)


def test_a_model_whose_optimizer_knows_none_of_it_any_more_is_refused() -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            train(run, range(2))
            model = run.replica.model
            model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
            train(run, range(2, 4))

    with pytest.raises(UserError, match=r"^the optimizer has none of the model's parameters any more"):
        on_threads(2, work)


@pytest.mark.parametrize("later", [False, True])
def test_two_parameters_in_the_same_memory_are_refused(later: bool) -> None:
    """They would come apart; one parameter in two places is trained as what it is."""

    def work(comm: Comm) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)).double()
        if not later:
            model[1].weight.data = model[0].weight.data
        with set_up(comm, "ddp", model) as run:
            train(run, range(1))
            model[1].weight.data = model[0].weight.data
            train(run, range(1, 2))

    with pytest.raises(UserError, match=r"^'0.weight' and '1.weight' are two parameters in the same memory"):
        on_threads(2, work)


@pytest.mark.filterwarnings("ignore:Using backward")  # torch's, with create_graph
@pytest.mark.parametrize("spec", ["allreduce-model", "gradient-average(all-reduce(all-gather))"])
def test_gradients_with_a_graph_of_their_own(spec: str) -> None:
    """`backward(create_graph=True)`: what is exchanged are the values."""

    def work(comm: Comm) -> Tensor:
        with set_up(comm, spec) as run:
            for step in range(2):
                run.model.zero_grad()
                loss_of(run.model, batch_of(comm.rank, step)).backward(create_graph=True)
                run.step()
            return weights(run.model)

    def plain(comm: Comm) -> Tensor:
        with set_up(comm, spec) as run:
            train(run, range(2))
            return weights(run.model)

    assert torch.equal(on_threads(2, work)[0], on_threads(2, plain)[0])


def test_frozen_for_a_while_as_the_discriminator_of_a_gan() -> None:
    """Nothing is set up again, and a frozen layer stays where it is."""

    def work(comm: Comm) -> None:
        model = small_model()
        run = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "ddp(bucket=0)", comm=comm)
        buckets = run.replica.buckets
        for step in range(4):
            model[0].requires_grad_(step % 2 == 0)
            before = weights(model[0])
            model.zero_grad()
            loss_of(model, batch_of(comm.rank, step)).backward()
            run.step()
            assert torch.equal(before, weights(model[0])) == (step % 2 == 1)
        assert run.replica.buckets is buckets
        run.close()

    on_threads(2, work)
