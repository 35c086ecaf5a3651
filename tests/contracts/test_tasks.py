"""The contract of every task found in the folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fake_clock import FakeClock
from sample_data import sample_files, write

from tutti.models.base import Model
from tutti.sampling import EpochSampler
from tutti.spec import names, parse
from tutti.tasks.base import Data, Task

BATCH = 4


@pytest.fixture(scope="module", params=names("tasks"))
def task(request: pytest.FixtureRequest) -> Task:
    torch.set_num_threads(1)
    return parse(request.param, Task)


@pytest.fixture(scope="module")
def folder(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds small files in the official formats for a task that reads files, and nothing for others."""
    path = tmp_path_factory.mktemp("data")
    dataset = getattr(task, "data_set", None)
    return path if dataset is None else write(sample_files(dataset), path)


@pytest.fixture(scope="module")
def data(task: Task, folder: Path) -> Data:
    return task.load(folder)


def test_its_text_parses_back(task: Task) -> None:
    assert task.name in names("tasks")
    assert parse(str(task), Task) == task


def test_its_default_model_is_one(task: Task) -> None:
    assert parse(task.default_model, Model).name in names("models")


def test_splits_hold_what_the_data_says(data: Data) -> None:
    for split in (data.train, data.test):
        assert len(split) == len(split.inputs) == len(split.targets) > 0
        assert split.targets.min() >= 0
        assert split.targets.max() < data.classes


def test_a_batch_has_the_shape_that_the_data_says(task: Task, data: Data) -> None:
    rows = torch.arange(BATCH)
    for split in (data.train, data.test):
        inputs, targets = task.batch(split, rows)
        assert inputs.shape == (BATCH, *data.shape)
        assert targets.shape == (BATCH,)
        assert torch.equal(task.batch(split, rows.flip(0))[0], inputs.flip(0))
        assert task.batch(split, rows[:0])[0].shape == (0, *data.shape)


def test_augmenting_changes_every_sample_by_its_own_chances(task: Task, data: Data) -> None:
    inputs, _ = task.batch(data.train, torch.arange(BATCH))
    chances = torch.rand(BATCH, task.chances, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    changed = task.augment(inputs, chances)
    assert torch.equal(torch.get_rng_state(), state)
    assert (changed.shape, changed.dtype) == (inputs.shape, inputs.dtype)
    assert torch.equal(changed, inputs) == (task.chances == 0)
    for row in range(BATCH):
        assert torch.equal(task.augment(inputs[row : row + 1], chances[row : row + 1])[0], changed[row])


def test_loading_is_the_same_for_every_worker_and_seed(task: Task, data: Data, folder: Path) -> None:
    torch.manual_seed(123)
    state = torch.get_rng_state()
    again = task.load(folder)
    assert torch.equal(torch.get_rng_state(), state)
    rows = torch.arange(BATCH)
    assert torch.equal(again.train.inputs[rows], data.train.inputs[rows])
    assert torch.equal(again.train.targets, data.train.targets)
    assert torch.equal(again.test.targets, data.test.targets)


def test_its_default_model_takes_a_step(task: Task, data: Data) -> None:
    model = task.prepare(parse(task.default_model, Model).build(data.shape, data.classes), FakeClock())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    indices = EpochSampler(len(data.train), BATCH, workers=1, rank=0, seed=0).epoch(0)[0]
    inputs, targets = task.batch(data.train, indices)
    outputs = model(inputs)
    loss = task.loss(outputs, targets)
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    assert loss.ndim == 0
    assert 0 <= task.correct(outputs, targets) <= len(indices)
    assert all(parameter.grad is not None for parameter in model.parameters())
