"""Steps of the optimizer bucket by bucket, and forwards that wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replicas import names_of, replica_of
from torch import Tensor, nn
from torch.nn.utils import prune
from training import (
    Forked,
    Tied,
    adam,
    batch_of,
    gradients,
    loss_of,
    momentum,
    small_model,
    train_alone,
    weights,
)
from workers import side_by_side

from tutti.replica import Replica

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
        seen.append(replica.optimizers.stepping)
        if len(seen) == 2:
            raise KeyError

    replica.optimizer.register_step_pre_hook(look)
    replica.step()
    with pytest.raises(KeyError):
        replica.step()
    assert (seen, replica.optimizers.stepping) == ([True, True], False)


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
    assert set(first) == {"0.weight", "0.bias"}
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
