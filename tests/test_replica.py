"""One worker's model as flat buckets: memory, order, and gradients equal to those of a plain model."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import pytest
import torch
from replicas import assert_in_buckets, names_of, replica_of
from torch import Tensor, nn
from training import (
    adam,
    batch_of,
    gradients,
    loss_of,
    momentum,
    seeded,
    small_model,
    train_alone,
    weights,
)

from tutti.replica import Bucket, Replica

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
    assert names_of(replica_of(small_model(), 80)) == [["2.bias", "2.weight"], ["0.bias", "0.weight"]]
    assert names_of(replica_of(small_model(), 81)) == [["2.bias", "2.weight", "0.bias"], ["0.weight"]]
    assert names_of(replica_of(small_model(), 32)) == [["2.bias", "2.weight"], ["0.bias"], ["0.weight"]]
    assert names_of(replica_of(small_model(), 16)) == [["2.bias"], ["2.weight"], ["0.bias"], ["0.weight"]]


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
    assert names_of(replica_of(small_model(), 96, first=16)) == [["2.bias"], ["2.weight", "0.bias"], ["0.weight"]]
    assert names_of(replica_of(small_model(), 208, first=80)) == [["2.bias", "2.weight"], ["0.bias", "0.weight"]]
    assert names_of(replica_of(small_model(), 208, first=0))[0] == ["2.bias"]
    assert names_of(replica_of(small_model(), 0, first=0)) == names_of(replica_of(small_model(), 0))


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize(("nbytes", "first"), [(300, 100), (300, 300), (1000, 40), (64, 0)])
def test_no_bucket_goes_on_when_it_is_full_whatever_the_groups(groups: int, nbytes: int, first: int) -> None:
    model = nn.Sequential(*(nn.Linear(1 + k % 3, 2 + k % 4) for k in range(9)))
    every = list(model.parameters())
    optimizer = torch.optim.SGD([{"params": every[k::groups]} for k in range(groups)], lr=0.1)
    replica = replica_of(model, nbytes, optimizer, first)
    for bucket in replica.buckets:
        before = sum(p.nbytes for p in bucket.parameters[:-1])
        assert before < nbytes or len(bucket.parameters) == 1
    assert sum(p.nbytes for p in replica.buckets[0].parameters[:-1]) < max(first, 1)
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


def test_released_it_keeps_weights_gradients_and_what_the_run_has_put_on() -> None:
    model = small_model()
    replica = Replica(model, momentum(model))
    called: list[str] = []
    replica.on_end = lambda: called.append("end")
    replica.on_begin = lambda: called.append("begin")
    replica.scale_of = lambda _: 0.5
    replica.make_buckets(80, lambda _: called.append("one"))
    replica.watch_forward(lambda _: called.append("forward"))
    loss_of(model, batch_of(0, 0)).backward()
    assert set(called) == {"forward", "begin", "one", "end"}
    replica.step()
    before = weights(model), gradients(model)
    replica.release()
    assert replica.buckets == []
    assert torch.equal(weights(model), before[0])
    assert all(torch.equal(now, then) for now, then in zip(gradients(model), before[1], strict=True))

    called.clear()
    plain = copy.deepcopy(model)
    replica.make_buckets(0, lambda _: called.append("other"))
    for each in (model, plain):
        each.zero_grad()
        loss_of(each, batch_of(0, 1)).backward()
    assert called == ["other", "other", "other", "other", "end"]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients(model), gradients(plain), strict=True))


def test_released_it_does_not_hold_on_to_the_buckets() -> None:
    model = small_model()
    replica = replica_of(model)
    left = weakref.ref(replica.buckets[0])
    replica.release()
    assert left() is None
    loss_of(model, batch_of(0, 0)).backward()
    assert not replica.exchanged
