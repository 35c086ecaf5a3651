"""The digits are split without overlap, look like digits still, and LeNet-5 learns them."""

from __future__ import annotations

import sys

import pytest
import torch

from tutti.errors import UserError
from tutti.models.lenet_5 import LeNet5
from tutti.sampling import EpochSampler
from tutti.tasks.base import Data
from tutti.tasks.digits import Digits


@pytest.fixture(scope="module")
def data() -> Data:
    return Digits().load()


def test_sizes(data: Data) -> None:
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.train.inputs.shape == (1437, 1, 32, 32)
    assert data.test.inputs.shape == (360, 1, 32, 32)
    assert (data.shape, data.classes) == ((1, 32, 32), 10)


def test_every_class_is_in_both_splits_in_proportion(data: Data) -> None:
    train, test = (split.targets.bincount(minlength=10) for split in (data.train, data.test))
    assert ((train + test).float() / 5 - test).abs().max() <= 1


def test_no_test_image_is_trained_on(data: Data) -> None:
    trained = {image.numpy().tobytes() for image in data.train.inputs}
    assert not trained & {image.numpy().tobytes() for image in data.test.inputs}


def test_pixels_are_normalised_by_the_training_split(data: Data) -> None:
    assert data.train.inputs.mean().item() == pytest.approx(0, abs=1e-4)
    assert data.train.inputs.std().item() == pytest.approx(1, abs=1e-4)
    assert data.train.inputs.min() == data.test.inputs.min()
    assert data.train.inputs.max() == data.test.inputs.max()


def test_the_frame_is_empty(data: Data) -> None:
    frame = torch.ones(32, 32, dtype=torch.bool)
    frame[4:28, 4:28] = False
    assert (data.train.inputs[..., frame] == data.train.inputs.min()).all()


def test_the_split_does_not_depend_on_the_seed(data: Data) -> None:
    torch.manual_seed(7)
    again = Digits().load()
    assert torch.equal(again.test.inputs, data.test.inputs)
    assert torch.equal(again.train.targets, data.train.targets)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match="pip install scikit-learn"):
        Digits().load()


def test_lenet_5_learns_digits(data: Data) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task, model = Digits(), LeNet5().build(data.shape, data.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
    sampler = EpochSampler(len(data.train), global_batch=64, workers=1, rank=0, seed=0)
    for epoch in range(3):
        for indices in sampler.epoch(epoch):
            inputs, targets = task.batch(data.train, indices)
            optimizer.zero_grad()
            task.loss(model(inputs), targets).backward()
            optimizer.step()
    with torch.no_grad():
        correct = task.correct(model(data.test.inputs), data.test.targets)
    assert correct / len(data.test) > 0.85
