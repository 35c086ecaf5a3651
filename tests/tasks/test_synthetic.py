"""Synthetic data is the same everywhere, and a paced model takes its time on the clock it is given, asleep."""

from __future__ import annotations

import pytest
import torch
from fake_clock import FakeClock
from torch import Tensor, nn

from tutti.models.lenet_5 import LeNet5
from tutti.models.resnet_18 import ResNet18
from tutti.spec import parse
from tutti.tasks.base import Task
from tutti.tasks.synthetic import Synthetic

COMPUTE = 0.3


def paced(model: nn.Module, clock: FakeClock) -> nn.Module:
    return Synthetic(shape=(1, 32, 32), compute=COMPUTE).prepare(model, clock)


def lenet() -> nn.Module:
    return LeNet5().build((1, 32, 32), 10)


def backward(module: nn.Module, batch: int = 4) -> None:
    outputs = module(torch.zeros(batch, 1, 32, 32))
    Synthetic().loss(outputs, torch.zeros(batch, dtype=torch.int64)).backward()


def test_all_fields_have_a_place_in_the_spec() -> None:
    task = parse("synthetic(1x8x8, classes=3, samples=12, compute=40ms)", Task)
    assert task == Synthetic((1, 8, 8), 3, 12, 0.04)


def test_data_has_the_shape_asked_for() -> None:
    data = Synthetic(shape=(1, 8, 8), classes=3, samples=50).load()
    assert data.train.inputs.shape == (50, 1, 8, 8)
    assert data.train.targets.unique().tolist() == [0, 1, 2]
    assert (len(data.train), len(data.test), data.shape, data.classes) == (50, 6, (1, 8, 8), 3)


def test_one_sample_is_enough() -> None:
    data = Synthetic(samples=1).load()
    assert (len(data.train), len(data.test)) == (1, 1)


def test_data_is_the_same_on_every_worker() -> None:
    torch.manual_seed(1)
    one = Synthetic(samples=10).load()
    torch.manual_seed(2)
    other = Synthetic(samples=10).load()
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)


def test_samples_are_standard_noise_and_no_two_are_equal() -> None:
    inputs = Synthetic(samples=64).load().train.inputs
    assert len({sample.numpy().tobytes() for sample in inputs}) == 64
    assert inputs.mean().item() == pytest.approx(0, abs=0.1)
    assert inputs.std().item() == pytest.approx(1, abs=0.1)


def test_large_images_take_the_memory_of_about_one() -> None:
    inputs = Synthetic(shape=(3, 224, 224), samples=4096).load().train.inputs
    assert inputs.untyped_storage().nbytes() < 4 * (3 * 224 * 224 + 4096)


def test_without_compute_the_model_is_the_user_s() -> None:
    model = lenet()
    assert Synthetic().prepare(model, FakeClock()) is model


def test_parameters_buffers_and_names_are_the_model_s_own() -> None:
    model = ResNet18().build((1, 32, 32), 10)
    module = paced(model, FakeClock())
    ours = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    theirs = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert list(ours) == list(theirs)
    assert all(ours[name] is theirs[name] for name in theirs)
    assert list(module.state_dict()) == list(model.state_dict())
    model.load_state_dict(module.state_dict())


def test_scores_are_equal_and_the_loss_that_of_chance() -> None:
    module = paced(lenet(), FakeClock())
    outputs = module(torch.zeros(4, 1, 32, 32))
    assert outputs.shape == (4, 10)
    assert Synthetic().loss(outputs, torch.zeros(4, dtype=torch.int64)).item() == pytest.approx(2.302585)


def test_forward_and_backward_take_the_time_asked_for() -> None:
    clock = FakeClock()
    module = paced(lenet(), clock)
    for _ in range(2):
        start = clock.time
        outputs = module(torch.zeros(4, 1, 32, 32))
        assert clock.time - start == pytest.approx(COMPUTE / 3)
        outputs.sum().backward()
        assert clock.time - start == pytest.approx(COMPUTE)


def test_an_evaluation_takes_the_forward_only() -> None:
    clock = FakeClock()
    with torch.no_grad():
        paced(lenet(), clock)(torch.zeros(4, 1, 32, 32))
    assert clock.time - 100 == pytest.approx(COMPUTE / 3)


def test_time_spent_in_hooks_is_not_added() -> None:
    clock = FakeClock()
    model = lenet()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: clock.sleep(COMPUTE / 1000))
    backward(paced(model, clock))
    # Only what the last parameters' hooks take comes after the last mark, as on a GPU that is through by then.
    assert COMPUTE <= clock.time - 100 < COMPUTE * 1.01


def test_a_pause_between_forward_and_backward_is_added() -> None:
    clock = FakeClock()
    outputs = paced(lenet(), clock)(torch.zeros(4, 1, 32, 32))
    clock.sleep(5)
    outputs.sum().backward()
    assert clock.time - 100 == pytest.approx(COMPUTE + 5)


def test_gradients_come_last_layer_first_at_their_share_of_the_time() -> None:
    clock = FakeClock()
    model = lenet()
    ready: list[tuple[str, float]] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.append((name, clock.time)))
    backward(paced(model, clock))
    names, times = zip(*ready, strict=True)
    assert list(names) == [name for name, _ in model.named_parameters()][::-1]
    last_layer = times[1] - (100 + COMPUTE / 3)
    assert last_layer == pytest.approx(COMPUTE * 2 / 3 * 850 / 61_706)
    assert list(times) == sorted(times)


def test_every_parameter_gets_the_same_gradient_at_every_step() -> None:
    model = lenet()
    module = paced(model, FakeClock())
    backward(module)
    first = [gradient_of(p).clone() for p in model.parameters()]
    assert all(g.count_nonzero() > 0.9 * g.numel() for g in first)
    for parameter in model.parameters():
        gradient_of(parameter).zero_()  # what a worker does to its gradient must not reach the next step
        parameter.grad = None
    backward(module)
    assert all(torch.equal(gradient_of(p), g) for p, g in zip(model.parameters(), first, strict=True))


def test_gradients_accumulate_until_they_are_zeroed() -> None:
    model = lenet()
    module = paced(model, FakeClock())
    backward(module)
    once = [gradient_of(p).clone() for p in model.parameters()]
    backward(module)
    assert all(torch.allclose(gradient_of(p), 2 * g) for p, g in zip(model.parameters(), once, strict=True))


def test_gradients_keep_the_memory_format() -> None:
    model = lenet()
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    module = paced(model, FakeClock())
    backward(module)
    assert all(gradient_of(p).stride() == p.stride() for p in model.parameters())


def test_a_change_of_type_after_the_first_step_is_followed() -> None:
    module = paced(lenet(), FakeClock())
    backward(module)
    module.zero_grad()
    module.double()
    backward(module)
    assert all(gradient_of(p).dtype == torch.float64 for p in module.parameters())


def test_two_forwards_in_one_loss_give_twice_the_gradient() -> None:
    model = lenet()
    module = paced(model, FakeClock())
    backward(module)
    once = [gradient_of(p).clone() for p in model.parameters()]
    module.zero_grad()
    inputs = torch.zeros(4, 1, 32, 32)
    (module(inputs) + module(inputs)).sum().backward()
    assert all(torch.allclose(gradient_of(p), 2 * g) for p, g in zip(model.parameters(), once, strict=True))


def test_autograd_keeps_the_gradient_it_is_given_without_a_copy() -> None:
    module = paced(lenet(), FakeClock())
    backward(module)
    first = [gradient_of(p) for p in module.parameters()]
    module.zero_grad()
    backward(module)
    # `first` still holds its memory, so a copy would have had to go elsewhere.
    assert all(gradient_of(p).data_ptr() == g.data_ptr() for p, g in zip(module.parameters(), first, strict=True))


def test_frozen_parameters_get_no_gradient() -> None:
    model = lenet()
    frozen = next(model.parameters())
    frozen.requires_grad_(False)
    clock = FakeClock()
    backward(paced(model, clock))
    assert frozen.grad is None
    assert clock.time - 100 == pytest.approx(COMPUTE)


def gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
