"""One worker's model as flat buckets: memory, order, and gradients equal to those of a plain model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from training import (
    Forked,
    Tied,
    adam,
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
from workers import on_threads, side_by_side

from tutti.comm.base import Comm
from tutti.errors import UserError
from tutti.replica import Bucket, Replica


def replica_of(
    model: nn.Module, nbytes: int = 2**20, optimizer: torch.optim.Optimizer | None = None, first: int | None = None
) -> Replica:
    replica = Replica(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1))
    replica.make_buckets(nbytes, lambda _: None, first)
    return replica


def names_of(replica: Replica) -> list[list[str]]:
    return [[piece.name for piece in bucket.layout.slices] for bucket in replica.buckets]


def assert_in_buckets(replica: Replica) -> None:
    """Every weight is its place in a flat buffer, and so is every gradient that is there."""
    for bucket in replica.buckets:
        for piece, parameter, view in zip(bucket.layout.slices, bucket.parameters, bucket.views, strict=True):
            assert parameter.data_ptr() == piece.view(bucket.weights).data_ptr()
            if parameter.grad is not None:
                assert parameter.grad.data_ptr() == view.data_ptr() == piece.view(bucket.grads).data_ptr()
                assert parameter.grad.stride() == view.stride()


# --- memory ----------------------------------------------------------------------------------------------------------


def test_weights_and_gradients_are_views_of_flat_buffers() -> None:
    model, plain = small_model(), small_model()
    replica = replica_of(model)
    assert torch.equal(weights(model), weights(plain))
    batch = batch_of(0, 0)
    loss_of(model, batch).backward()
    assert_in_buckets(replica)
    (bucket,) = replica.buckets
    bucket.weights.fill_(2)
    assert torch.equal(weights(model), torch.full_like(weights(plain), 2))
    bucket.grads.fill_(3)
    assert all(g is not None and bool((g == 3).all()) for g in gradients(model))


def test_channels_last_weights_stay_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)).double().to(memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    replica = replica_of(model)
    images = torch.randn(2, 3, 9, 9, dtype=torch.float64).to(memory_format=torch.channels_last)
    for each in (model, plain):
        each(images).square().mean().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.stride() == theirs.stride()
        assert ours.grad is not None
        assert ours.grad.stride() == ours.stride()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=0)
    assert_in_buckets(replica)


def test_a_transposed_parameter_keeps_its_strides() -> None:
    model = small_model()
    turned = torch.arange(12.0, dtype=torch.float64).view(3, 4).t()
    model[0].weight = nn.Parameter(turned.clone(memory_format=torch.preserve_format))
    replica = replica_of(model)
    assert model[0].weight.stride() == (1, 4)
    assert torch.equal(model[0].weight, turned)
    loss_of(model, batch_of(0, 0)).backward()
    assert_in_buckets(replica)


def test_the_zero_sized_parameter() -> None:
    model = small_model()
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 3, dtype=torch.float64)))
    replica = replica_of(model)
    (loss_of(model, batch_of(0, 0)) + model.nothing.sum()).backward()
    assert model.nothing.grad is not None
    assert_in_buckets(replica)
    assert replica.exchanged


def test_gradients_that_were_there_before_move_into_the_buffers() -> None:
    model, plain = small_model(), small_model()
    for each in (model, plain):
        loss_of(each, batch_of(0, 0)).backward()
    replica = replica_of(model)
    assert_in_buckets(replica)
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(plain), strict=True))


def test_a_user_who_puts_another_gradient_in_place() -> None:
    model = small_model()
    replica = replica_of(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    replica.finish()
    assert_in_buckets(replica)
    (bucket,) = replica.buckets
    assert all(torch.equal(view, torch.ones_like(view)) for view in bucket.views)
    assert bucket.grads[bucket.layout.numel :].tolist() == [1, 1, 1, 1, 0]  # all used; the exchange fills the weight


# --- buckets ---------------------------------------------------------------------------------------------------------


def test_buckets_follow_the_parameters_backwards() -> None:
    assert names_of(replica_of(small_model())) == [["2.bias", "2.weight", "0.bias", "0.weight"]]
    # in bytes: 16, 64, 32, 96
    assert names_of(replica_of(small_model(), 80)) == [["2.bias", "2.weight"], ["0.bias"], ["0.weight"]]
    assert names_of(replica_of(small_model(), 79)) == [["2.bias"], ["2.weight"], ["0.bias"], ["0.weight"]]
    assert names_of(replica_of(small_model(), 112)) == [["2.bias", "2.weight", "0.bias"], ["0.weight"]]


def test_one_bucket_per_tensor_with_0() -> None:
    replica = replica_of(small_model(), 0)
    assert [bucket.index for bucket in replica.buckets] == [0, 1, 2, 3]
    assert names_of(replica) == [["2.bias"], ["2.weight"], ["0.bias"], ["0.weight"]]


def test_buckets_never_span_groups() -> None:
    model = small_model()
    biases = [p for p in model.parameters() if p.dim() == 1]
    matrices = [p for p in model.parameters() if p.dim() == 2]
    optimizer = torch.optim.SGD([{"params": matrices, "lr": 0.1}, {"params": biases, "lr": 0.2}])
    replica = replica_of(model, optimizer=optimizer)
    assert {b.group: n for b, n in zip(replica.buckets, names_of(replica), strict=True)} == {
        0: ["2.weight", "0.weight"],
        1: ["2.bias", "0.bias"],
    }


def test_buckets_never_span_types_or_devices() -> None:
    model = small_model()
    model.register_parameter("single", nn.Parameter(torch.zeros(3)))
    model.register_parameter("elsewhere", nn.Parameter(torch.zeros(3, dtype=torch.float64, device="meta")))
    replica = replica_of(model)
    for bucket in replica.buckets:
        kinds = {(p.dtype, p.device) for p in bucket.parameters}
        assert kinds == {(bucket.layout.dtype, bucket.layout.device)}
        assert (bucket.weights.dtype, bucket.grads.device) == (bucket.layout.dtype, bucket.layout.device)
    assert len(replica.buckets) == 3


def test_buckets_stand_in_the_order_in_which_backward_completes_them() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    biases = [p for p in model.parameters() if p.dim() == 1]
    matrices = [p for p in model.parameters() if p.dim() == 2]
    optimizer = torch.optim.SGD([{"params": matrices}, {"params": biases[2:]}, {"params": biases[:2]}])
    names = names_of(replica_of(model, 32, optimizer))  # two matrices, or four biases
    assert sorted(names) == [
        ["1.bias", "0.bias"],
        ["1.weight", "0.weight"],
        ["3.bias", "2.bias"],
        ["3.weight", "2.weight"],
    ]
    place = {name: i for i, (name, _) in enumerate(reversed(list(model.named_parameters())))}
    completed = [max(place[name] for name in bucket) for bucket in names]
    assert completed == sorted(completed)


def test_the_first_bucket_may_be_smaller_than_the_others() -> None:
    # in bytes: 16, 64, 32, 96
    assert names_of(replica_of(small_model(), 208, first=16)) == [["2.bias"], ["2.weight", "0.bias", "0.weight"]]
    assert names_of(replica_of(small_model(), 112, first=20)) == [["2.bias"], ["2.weight", "0.bias"], ["0.weight"]]
    assert names_of(replica_of(small_model(), 208, first=80)) == [["2.bias", "2.weight"], ["0.bias", "0.weight"]]
    assert names_of(replica_of(small_model(), 208, first=0))[0] == ["2.bias"]
    assert names_of(replica_of(small_model(), 0, first=0)) == names_of(replica_of(small_model(), 0))


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize(("nbytes", "first"), [(300, 100), (300, 300), (1000, 40), (64, 0)])
def test_no_bucket_is_too_large_whatever_the_groups(groups: int, nbytes: int, first: int) -> None:
    model = nn.Sequential(*(nn.Linear(1 + k % 3, 2 + k % 4) for k in range(9)))
    every = list(model.parameters())
    optimizer = torch.optim.SGD([{"params": every[k::groups]} for k in range(groups)], lr=0.1)
    replica = replica_of(model, nbytes, optimizer, first)
    for bucket in replica.buckets:
        limit = nbytes if bucket.index else first
        assert len(bucket.parameters) == 1 or sum(p.nbytes for p in bucket.parameters) <= limit
    assert sorted(name for names in names_of(replica) for name in names) == sorted(dict(model.named_parameters()))


class Crossed(nn.Module):
    """Its layers are used in another order than they are listed in."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(3):
            self.last, self.first, self.middle = (nn.Linear(3, 3).double() for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.middle(self.first(inputs)).tanh())[:, :2]


def test_buckets_are_handed_on_in_order_whatever_order_the_gradients_come_in() -> None:
    model = Crossed()
    replica = Replica(model, momentum(model))
    handed: list[int] = []
    came: list[str] = []
    replica.make_buckets(0, lambda bucket: handed.append(bucket.index))
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    loss_of(model, batch_of(0, 0)).backward()
    assert [name for bucket in names_of(replica) for name in bucket] != came
    assert handed == [0, 1, 2, 3, 4, 5]


def test_a_bucket_is_handed_on_as_soon_as_it_is_full() -> None:
    model = small_model()
    replica = Replica(model, momentum(model))
    events: list[str] = []
    replica.make_buckets(0, lambda bucket: events.append(f"bucket {bucket.index}"))
    model[0].weight.register_hook(lambda _: events.append("last gradient"))
    replica.on_end = lambda: events.append("end")
    loss_of(model, batch_of(0, 0)).backward()
    assert events == ["bucket 0", "bucket 1", "bucket 2", "last gradient", "bucket 3", "end"]


def test_what_the_exchange_writes_is_the_gradient_when_backward_returns() -> None:
    model, plain = small_model(), small_model()
    replica = Replica(model, momentum(model))
    full: list[Bucket] = []
    replica.make_buckets(0, full.append)
    replica.on_end = lambda: [bucket.grads.mul_(-2) for bucket in full] and None
    for each in (model, plain):
        loss_of(each, batch_of(0, 0)).backward()
    for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
        assert torch.equal(ours, -2 * theirs)


# --- cutting anew ----------------------------------------------------------------------------------------------------

SIZES = (2**20, 0, 80, 112, 79)


def test_cutting_anew_keeps_weights_and_gradients_and_leaves_the_old_buffers() -> None:
    model = small_model()
    replica = replica_of(model)
    loss_of(model, batch_of(0, 0)).backward()
    model[0].bias.grad = None
    for nbytes in SIZES:
        (old, *_), weights_before, gradients_before = replica.buckets, weights(model), gradients(model)
        replica.make_buckets(nbytes, lambda _: None)
        assert names_of(replica) == names_of(replica_of(small_model(), nbytes))
        assert torch.equal(weights(model), weights_before)
        for now, before in zip(gradients(model), gradients_before, strict=True):
            assert now is before is None or torch.equal(now, before)
        assert_in_buckets(replica)
        old.weights.fill_(7), old.grads.fill_(7)
        assert torch.equal(weights(model), weights_before)


def test_cutting_anew_keeps_the_memory_format() -> None:
    model = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    strides = model.weight.stride()
    replica = replica_of(model)
    replica.make_buckets(0, lambda _: None)
    assert model.weight.stride() == strides
    model(torch.randn(2, 3, 5, 5)).sum().backward()
    assert_in_buckets(replica)


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_training_goes_on_as_if_nothing_had_been_cut(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    model, plain = small_model(), small_model()
    ours, theirs = optimizer(model), optimizer(plain)
    replica = replica_of(model, optimizer=ours)
    for nbytes in SIZES:
        batches = [batch_of(0, step) for step in range(3)]
        train_alone(model, ours, batches, replica.step)
        train_alone(plain, theirs, batches)
        replica.make_buckets(nbytes, lambda _: None)
        assert torch.equal(weights(model), weights(plain))


def test_after_cutting_anew_only_the_new_buckets_are_handed_on_and_once() -> None:
    model = small_model()
    replica = Replica(model, momentum(model))
    old: list[Bucket] = []
    new: list[Bucket] = []
    replica.make_buckets(80, old.append)
    replica.make_buckets(0, new.append)
    loss_of(model, batch_of(0, 0)).backward()
    assert old == []
    assert new == replica.buckets
    assert all(len(p._post_accumulate_grad_hooks or ()) == 1 for p in model.parameters())


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
        assert ([b.index for b in handed], ends) == ([0, 1, 2], [1])
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


# --- steps -----------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@pytest.mark.parametrize("nbytes", [0, 80, 2**20])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_local_steps_over_all_buckets_equal_one_step(name: str, nbytes: int) -> None:
    model, plain = small_model(), small_model()
    optimizers = [
        OPTIMIZERS[name]([{"params": m[0].parameters(), "lr": 0.1}, {"params": m[2].parameters(), "lr": 0.01}])
        for m in (model, plain)
    ]
    groups = optimizers[0].param_groups
    replica = replica_of(model, nbytes, optimizers[0])
    batches = [batch_of(0, step) for step in range(4)]
    train_alone(model, optimizers[0], batches, lambda: [replica.local_step(b) for b in replica.buckets])
    train_alone(plain, optimizers[1], batches)
    assert torch.equal(weights(model), weights(plain))
    assert optimizers[0].param_groups is groups
    assert [len(g["params"]) for g in groups] == [2, 2]


def test_a_local_step_touches_one_bucket_only() -> None:
    model, before = small_model(), small_model()
    replica = replica_of(model, 0)
    loss_of(model, batch_of(0, 0)).backward()
    replica.local_step(replica.buckets[1])  # 2.weight
    changed = [not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True)]
    assert changed == [False, False, True, False]


ELEMENTWISE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    **OPTIMIZERS,
    "plain": torch.optim.SGD,
    "amsgrad": lambda groups: torch.optim.Adam(groups, amsgrad=True, weight_decay=0.1),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.5, centered=True),
    "nadam": torch.optim.NAdam,
    "adafactor": torch.optim.Adafactor,
    "asgd": torch.optim.ASGD,
    "tensor rate": lambda groups: torch.optim.Adam(
        [{**group, "lr": torch.tensor(group["lr"], dtype=torch.float64)} for group in groups]
    ),
}


def step_on_a_thread(replica: Replica, before: Callable[[], None] = lambda: None) -> None:
    """The step of every bucket, as it was when this was called, after `before`."""
    settings = [replica.settings_of(bucket) for bucket in replica.buckets]

    def work() -> None:
        for bucket, each in zip(replica.buckets, settings, strict=True):
            assert each is not None
            replica.step_elsewhere(bucket, each)

    before()
    (done,) = side_by_side(1, lambda _: work() or True)
    assert done


@pytest.mark.parametrize("nbytes", [0, 80, 2**20])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_steps_on_another_thread_equal_one_step(name: str, nbytes: int) -> None:
    model, plain = small_model(), small_model()
    ours, theirs = (
        ELEMENTWISE[name]([{"params": m[0].parameters(), "lr": 0.1}, {"params": m[2].parameters(), "lr": 0.01}])
        for m in (model, plain)
    )
    groups = ours.param_groups
    replica = replica_of(model, nbytes, ours)
    batches = [batch_of(0, step) for step in range(4)]
    train_alone(model, ours, batches, lambda: step_on_a_thread(replica))
    train_alone(plain, theirs, batches)
    assert torch.equal(weights(model), weights(plain))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert ours.param_groups is groups


@pytest.mark.parametrize("name", ["momentum", "tensor rate"])
def test_a_step_elsewhere_is_that_of_its_time_whatever_comes_in_between(name: str) -> None:
    """The schedule's next rate, and gradients that are gone."""
    model, plain = small_model(), small_model()
    ours, theirs = (ELEMENTWISE[name]([{"params": m.parameters(), "lr": 0.1}]) for m in (model, plain))
    replica = replica_of(model, optimizer=ours)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (ours, theirs)]
    ours._opt_called = True  # type: ignore[attr-defined]

    def meanwhile() -> None:
        schedules[0].step()
        ours.zero_grad(set_to_none=True)

    for step in range(3):
        for each in (model, plain):
            each.zero_grad()
            loss_of(each, batch_of(0, step)).backward()
        step_on_a_thread(replica, meanwhile)
        theirs.step()
        schedules[1].step()
        assert torch.equal(weights(model), weights(plain))
        assert gradients(model) == [None] * 4


def test_a_step_elsewhere_leaves_out_what_nobody_used() -> None:
    model, plain = Forked(), Forked()
    replica = replica_of(model, optimizer=momentum(model))  # its weight decay would move it
    train_alone(model, replica.optimizer, [batch_of(0, 0)], lambda: step_on_a_thread(replica))
    train_alone(plain, momentum(plain), [batch_of(0, 0)])
    assert torch.equal(weights(model), weights(plain))


def test_a_step_elsewhere_calls_no_hooks_and_the_optimizers_own_still_does() -> None:
    model = small_model()
    replica = replica_of(model)
    calls: list[int] = []
    replica.optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    loss_of(model, batch_of(0, 0)).backward()
    step_on_a_thread(replica)
    assert calls == []
    replica.step()
    assert calls == [1]


def test_autograd_notices_a_step_elsewhere_that_comes_too_early() -> None:
    model = small_model()
    replica = replica_of(model)
    loss_of(model, batch_of(0, 0)).backward()
    loss = loss_of(model, batch_of(0, 1))
    step_on_a_thread(replica)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_bucket_that_the_optimizer_does_not_know_has_no_settings() -> None:
    model = small_model()
    replica = replica_of(model, optimizer=torch.optim.SGD(model[2].parameters(), lr=0.25))
    known, unknown = (replica.settings_of(bucket) for bucket in replica.buckets)
    assert known is not None
    assert known["lr"] == 0.25
    assert unknown is None


def test_only_torchs_own_optimizers_step_on_each_parameter_alone() -> None:
    class Mine(torch.optim.SGD):
        pass

    model = small_model()
    assert Replica(model, adam(model)).steps_alone()
    assert not Replica(model, Mine(model.parameters(), lr=0.1)).steps_alone()


def test_stepping_is_said_while_it_lasts_and_no_longer() -> None:
    model = small_model()
    replica = replica_of(model)
    seen: list[bool] = []

    def look(*_: object) -> None:
        seen.append(replica.stepping)
        if len(seen) == 2:
            raise KeyError

    replica.optimizer.register_step_pre_hook(look)
    replica.step()
    with pytest.raises(KeyError):
        replica.step()
    assert (seen, replica.stepping) == ([True, True], False)


def test_groups_are_put_back_after_a_failed_step() -> None:
    model = small_model()
    optimizer = momentum(model)
    replica = replica_of(model, 0, optimizer)
    groups = optimizer.param_groups

    def refuse(*_: object) -> None:
        raise KeyError

    optimizer.register_step_pre_hook(refuse)
    with pytest.raises(KeyError):
        replica.local_step(replica.buckets[0])
    assert optimizer.param_groups is groups


# --- the next forward ------------------------------------------------------------------------------------------------


def watch(model: nn.Module, nbytes: int = 0) -> tuple[Replica, Callable[[Callable[[], Any]], list[list[str]]]]:
    """The replica, and a function that says which parameters a forward asked for, module by module."""
    replica, asked = replica_of(model, nbytes), []
    replica.watch_forward(lambda buckets: asked.append([name for i in buckets for name in names_of(replica)[i]]))

    def during(forward: Callable[[], Any]) -> list[list[str]]:
        asked.clear()
        forward()
        return [names for names in asked if names]

    return replica, during


def test_every_module_asks_for_its_own_parameters_once_all_have_been_called() -> None:
    model = small_model()
    _, during = watch(model)
    inputs = batch_of(0, 0)[0]
    first = during(lambda: model(inputs))
    assert sorted(first[0]) == sorted(dict(model.named_parameters())), "nothing is known yet"
    assert during(lambda: model(inputs)) == [["0.weight", "0.bias"], ["2.weight", "2.bias"]]


def test_a_whole_bucket_comes_with_the_first_of_its_parameters() -> None:
    model = small_model()
    _, during = watch(model, nbytes=80)
    during(lambda: model(batch_of(0, 0)[0]))
    first, *others = during(lambda: model(batch_of(0, 0)[0]))
    assert first == ["0.weight", "0.bias"]
    assert {name for names in others for name in names} == {"2.weight", "2.bias"}


class Attentive(nn.Module):
    """Attention uses the weights of its last layer without calling it; so does the model with a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.scales = nn.ParameterList([torch.ones(4)])
        self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.attention(inputs, inputs, inputs)[0] * self.scales[0])


ATTENTION = [f"attention.{name}" for name in ("in_proj_bias", "in_proj_weight", "out_proj.bias", "out_proj.weight")]


def test_modules_that_are_never_called_come_with_the_one_that_uses_them() -> None:
    model, inputs = Attentive(), torch.randn(3, 2, 4)
    _, during = watch(model)
    during(lambda: model(inputs))
    root, attention, last = during(lambda: model(inputs))
    assert root == ["scales.0"]
    assert sorted(attention) == ATTENTION
    assert last == ["last.weight", "last.bias"]


def test_modules_that_are_never_called_come_also_when_the_model_itself_is_not_called() -> None:
    model, inputs = Attentive(), torch.randn(3, 2, 4)
    _, during = watch(model)
    for _ in range(2):
        (asked,) = during(lambda: model.attention(inputs, inputs, inputs))
        assert sorted(asked) == ATTENTION


def test_a_module_that_is_called_for_the_first_time_came_with_the_model_until_then() -> None:
    model = Forked()
    _, during = watch(model)
    inputs = batch_of(0, 0)[0]
    for _ in range(2):
        asked = during(lambda: model(inputs))
    assert asked[0] == ["odd.weight", "odd.bias", "nobody.weight", "nobody.bias"]
    assert asked[1:] == [["trunk.weight", "trunk.bias"], ["even.weight", "even.bias"]]
    model.branch = "odd"
    assert during(lambda: model(inputs))[0] == ["odd.weight", "odd.bias", "nobody.weight", "nobody.bias"]
    assert during(lambda: model(inputs)) == [
        ["nobody.weight", "nobody.bias"],
        ["trunk.weight", "trunk.bias"],
        ["odd.weight", "odd.bias"],
    ]


def test_tied_weights_are_asked_for_by_both() -> None:
    model = Tied()
    _, during = watch(model)
    during(lambda: model(batch_of(0, 0)[0]))
    asked = during(lambda: model(batch_of(0, 0)[0]))
    assert asked == [["first.weight", "first.bias"], ["first.weight", "second.bias"]]


@pytest.mark.parametrize(("training", "wanted"), [(False, True), (False, False), (True, False)])
def test_evaluation_asks_for_everything_before_it_begins(training: bool, wanted: bool) -> None:
    """torch's transformer has a short cut for it, where none of its parts is called."""
    model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    _, during = watch(model)
    inputs, every = torch.randn(3, 2, 4), sorted(dict(model.named_parameters()))

    def evaluate() -> None:
        model.train(training)
        with torch.set_grad_enabled(wanted):
            model(inputs)
        model.train()

    during(evaluate)
    assert sorted(during(lambda: model(inputs))[0]) == every, "what evaluation calls is no promise"
    assert sorted(during(lambda: model(inputs))[0]) != every
    assert sorted(during(evaluate)[0]) == every


def test_a_weight_that_a_hook_computes_is_asked_for_before() -> None:
    model = small_model()
    prune.identity(model[0], "weight")  # weight = weight_orig * mask, in a hook before forward
    replica = replica_of(model)
    replica.watch_forward(lambda _: model[0].weight_orig.data.fill_(5))
    model[0](batch_of(0, 0)[0])
    assert bool((model[0].weight == 5).all())


def test_what_is_asked_for_follows_a_new_cut() -> None:
    model = small_model()
    replica, during = watch(model)
    for nbytes in (0, 80, 2**20):
        replica.make_buckets(nbytes, lambda _: None)
        during(lambda: model(batch_of(0, 0)[0]))
        asked = during(lambda: model(batch_of(0, 0)[0]))
        assert {name for names in asked for name in names} == set(dict(model.named_parameters()))


def test_frozen_parameters_are_not_asked_for() -> None:
    model = small_model()
    model[0].weight.requires_grad_(False)
    _, during = watch(model)
    during(lambda: model(batch_of(0, 0)[0]))
    assert during(lambda: model(batch_of(0, 0)[0])) == [["0.bias"], ["2.weight", "2.bias"]]


def test_after_close_nobody_is_asked() -> None:
    model = small_model()
    replica, during = watch(model)
    replica.close()
    assert during(lambda: model(batch_of(0, 0)[0])) == []
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_forward_does_not_read_is_not_watched() -> None:
    """What only the optimizer knows may be used anywhere; of what it does not know the gradients may be."""
    model, scale = small_model(), nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = torch.optim.SGD([*model[2].parameters(), scale], lr=0.1)
    replica = replica_of(model, 0, optimizer)
    watched = [names for i, names in enumerate(names_of(replica)) if i in replica.watched()]
    assert watched == [["2.bias"], ["2.weight"]]
    replica.make_buckets(2**20, lambda _: None)
    assert replica.watched() == set(), "scale lies in the same bucket as the last layer"


# --- the end ---------------------------------------------------------------------------------------------------------


def test_after_close_the_model_trains_as_before() -> None:
    model, plain = small_model(), small_model()
    replica = Replica(model, momentum(model))
    handed: list[Bucket] = []
    replica.make_buckets(0, handed.append)
    replica.close()
    batches = [batch_of(0, step) for step in range(2)]
    assert torch.equal(
        weights(train_alone(model, momentum(model), batches)), weights(train_alone(plain, momentum(plain), batches))
    )
    assert not handed
