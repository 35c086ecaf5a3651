"""Gradients come into the buckets, whatever the model and the user do; and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from replicas import assert_in_buckets, names_of, replica_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from training import (
    Forked,
    Tied,
    batch_of,
    gradients,
    loss_of,
    momentum,
    seeded,
    set_up,
    small_model,
    train_alone,
    weights,
)
from workers import on_threads

from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.replica import Bucket, Replica

# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 80, 2**20])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_equal_those_of_a_plain_model(nbytes: int, set_to_none: bool) -> None:
    model, plain = small_model(), small_model()
    replica = replica_of(model, nbytes)
    for step in range(3):
        for each in (model, plain):
            each.zero_grad(set_to_none=set_to_none)
            loss_of(each, batch_of(0, step)).backward()
        assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(plain), strict=True))
        assert_in_buckets(replica)
    model.zero_grad()
    assert gradients(model) == [None] * 4


def test_gradients_add_up_without_zero_grad() -> None:
    model, plain = small_model(), small_model()
    replica_of(model)
    for step in range(3):
        for each in (model, plain):
            loss_of(each, batch_of(0, step)).backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(plain), strict=True))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_while_paused_gradients_add_up_and_nothing_is_handed_on(set_to_none: bool) -> None:
    model, plain = small_model(), small_model()
    replica = Replica(model, momentum(model))
    handed: list[Bucket] = []
    ends: list[int] = []
    replica.make_buckets(80, handed.append)
    replica.on_end = lambda: ends.append(1)
    for _ in range(2):
        for each in (model, plain):
            each.zero_grad(set_to_none=set_to_none)
        with replica.paused():
            for step in range(2):
                loss_of(model, batch_of(0, step)).backward()
        assert not handed
        loss_of(model, batch_of(0, 2)).backward()
        assert ([b.index for b in handed], ends) == ([0, 1], [1])
        for step in range(3):
            loss_of(plain, batch_of(0, step)).backward()
        assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(plain), strict=True))
        assert_in_buckets(replica)
        handed.clear(), ends.clear()


def test_what_was_paused_is_handed_on_by_finish_alone() -> None:
    model = small_model()
    replica = Replica(model, momentum(model))
    handed: list[int] = []
    replica.make_buckets(0, lambda bucket: handed.append(bucket.index))
    with replica.paused():
        loss_of(model, batch_of(0, 0)).backward()
    before = gradients(model)
    replica.finish()
    assert handed == [0, 1, 2, 3]
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), before, strict=True))
    assert_in_buckets(replica)


def test_pausing_ends_with_an_error_too() -> None:
    replica = replica_of(small_model())
    with pytest.raises(KeyError), replica.paused():
        raise KeyError
    loss_of(replica.model, batch_of(0, 0)).backward()
    assert replica.exchanged


def forked_gradients(workers: int) -> dict[str, Tensor]:
    """What the mean over workers is, an unused parameter counting as zero."""
    total: dict[str, Tensor] = {}
    for worker in range(workers):
        model = Forked()
        model.branch = ("even", "odd")[worker % 2]
        loss_of(model, batch_of(worker, 0)).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                total[name] = total.get(name, torch.zeros_like(parameter)) + parameter.grad / workers
    return total


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("bucket", ["0", "100B", "25MiB"])
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_parameters_used_on_some_workers_only(size: int, bucket: str, overlap: str) -> None:
    def work(comm: Comm) -> dict[str, Tensor | None]:
        model = Forked()
        model.branch = ("even", "odd")[comm.rank % 2]
        with set_up(comm, f"ddp(bucket={bucket}, overlap={overlap})", model) as run:
            for _ in range(2):
                model.zero_grad()
                loss_of(run.model, batch_of(comm.rank, 0)).backward()
            return {name: p.grad for name, p in model.named_parameters()}

    expected = forked_gradients(size)
    assert Forked().state_dict().keys() - expected == {"nobody.weight", "nobody.bias"}
    for found in on_threads(size, work):
        assert {name for name, g in found.items() if g is None} == {"nobody.weight", "nobody.bias"}
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-15)


class Complex(nn.Module):
    def __init__(self, used: bool) -> None:
        super().__init__()
        self.used = used
        self.factor, self.shift = (nn.Parameter(torch.ones(3, dtype=torch.complex128)) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        shifted = inputs * self.factor + (self.shift if self.used else 0)
        return shifted.abs().square().sum()


def test_complex_parameters() -> None:
    def work(comm: Comm) -> list[Tensor | None]:
        with set_up(comm, model=Complex(used=comm.rank == 0)) as run:
            run.model(torch.ones(3) * (1 + 2j) * (comm.rank + 1)).backward()
            return gradients(run.model)

    plain = Complex(used=True)
    plain(torch.ones(3) * (1 + 2j)).backward()
    plain.used = False
    plain(torch.ones(3) * (2 + 4j)).backward()
    for found in on_threads(2, work):
        for ours, theirs in zip(found, gradients(plain), strict=True):
            torch.testing.assert_close(ours, theirs / 2)


def test_an_unused_parameter_has_no_gradient_and_is_not_stepped() -> None:
    model, plain = Forked(), Forked()
    optimizer = momentum(model)  # its weight decay would move a parameter whose gradient is zero
    replica = replica_of(model, optimizer=optimizer)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, batch_of(0, step)).backward()
        assert model.nobody.weight.grad is None
        replica.step()
    train_alone(plain, momentum(plain), [batch_of(0, step) for step in range(2)])
    assert torch.equal(weights(model), weights(plain))
    assert torch.equal(model.nobody.weight, Forked().nobody.weight)


def test_frozen_parameters_are_left_alone() -> None:
    model = small_model()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.data_ptr()
    replica = replica_of(model)
    assert names_of(replica) == [["2.bias", "2.weight", "0.bias"]]
    loss_of(model, batch_of(0, 0)).backward()
    assert model[0].weight.grad is None
    assert model[0].weight.data_ptr() == before


def test_tied_weights_have_one_place_and_one_gradient() -> None:
    model, plain = Tied(), Tied()
    replica = replica_of(model, 0)
    assert names_of(replica) == [["second.bias"], ["first.bias"], ["first.weight"]]
    for each in (model, plain):
        loss_of(each, batch_of(0, 0)).backward()
    assert model.second.weight is model.first.weight
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(plain), strict=True))


def test_parameters_unknown_to_the_optimizer_are_exchanged_and_never_stepped() -> None:
    model, plain = small_model(), small_model()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    replica = replica_of(model, optimizer=optimizer)
    assert [(b.group, n) for b, n in zip(replica.buckets, names_of(replica), strict=True)] == [
        (0, ["2.bias", "2.weight"]),
        (None, ["0.bias", "0.weight"]),
    ]
    for each in (model, plain):
        loss_of(each, batch_of(0, 0)).backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(plain), strict=True))
    for bucket in replica.buckets:
        replica.local_step(bucket)
    assert torch.equal(model[0].weight, plain[0].weight)
    assert not torch.equal(model[2].weight, plain[2].weight)


@pytest.mark.parametrize("kind", [nn.Parameter, lambda t: t.requires_grad_()])
def test_parameters_known_to_the_optimizer_only(kind: Callable[[Tensor], Tensor]) -> None:
    model = small_model()
    scale = kind(torch.ones(2, dtype=torch.float64))
    replica = replica_of(model, optimizer=torch.optim.SGD([*model.parameters(), scale], lr=0.1))
    (model(batch_of(0, 0)[0]) * scale).sum().backward()
    assert scale.grad is not None
    assert_in_buckets(replica)
    assert replica.buckets[0].parameters[0] is scale


# --- refused ---------------------------------------------------------------------------------------------------------


def test_sparse_gradients_are_refused_in_one_sentence() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    replica_of(model)
    with pytest.raises(UserError, match=r"'0\.weight' has a sparse gradient, .* use sparse=False") as caught:
        model(torch.tensor([1, 2])).sum().backward()
    assert "\n" not in str(caught.value)


class Twice(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        with seeded(9):
            self.block, self.head = nn.Linear(3, 3).double(), nn.Linear(3, 2).double()
        self.reentrant: bool | None = reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.requires_grad_()
        for _ in range(2):
            inputs = self.run_block(inputs)
        return self.head(inputs)

    def run_block(self, inputs: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.block(inputs)
        return checkpoint(self.block, inputs, use_reentrant=self.reentrant)


def test_two_gradients_in_one_backward_are_refused() -> None:
    model = Twice(reentrant=True)
    replica_of(model)
    with pytest.raises(UserError, match=r"'block\.\w+' got two gradients .* use_reentrant=False"):
        loss_of(model, batch_of(0, 0)).backward()


def test_checkpointing_without_reentrance_works() -> None:
    model, plain = Twice(reentrant=False), Twice(reentrant=False)
    plain.reentrant = None
    replica_of(model, 0)
    for each in (model, plain):
        loss_of(each, batch_of(0, 0)).backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(plain), strict=True))


def test_after_a_failed_backward_the_next_one_says_so() -> None:
    model = small_model()
    replica_of(model)

    def fail(_: Tensor) -> None:
        raise KeyError("the user's own error")

    hook = model[0].weight.register_hook(fail)
    with pytest.raises(KeyError):
        loss_of(model, batch_of(0, 0)).backward()
    hook.remove()
    with pytest.raises(UserError, match="or the backward before this one failed"):
        loss_of(model, batch_of(0, 0)).backward()
