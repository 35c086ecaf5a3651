"""Fashion-MNIST as it was published, told apart from MNIST, and augmented where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sample_data import TEST, TRAIN, idx_files, write

from tutti.data.augment import crop, flip
from tutti.spec import parse
from tutti.tasks.base import Task
from tutti.tasks.fashion_mnist import FASHION_MNIST, FashionMnist
from tutti.tasks.mnist import MNIST

BACKGROUND = -0.2860 / 0.3530


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(idx_files(), tmp_path)


def test_its_files_have_mnists_names_and_sizes_and_other_contents() -> None:
    assert FASHION_MNIST.name == FashionMnist().name
    for ours, theirs in zip(FASHION_MNIST.files, MNIST.files, strict=True):
        assert (ours.name, ours.size) == (theirs.name, theirs.size)
        assert ours.sha256 != theirs.sha256
        assert ours.md5 != theirs.md5


def test_a_batch_is_framed_and_normalised(folder: Path) -> None:
    task = FashionMnist()
    data = task.load(folder)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (TRAIN, TEST, (1, 32, 32), 10)
    inputs, _ = task.batch(data.test, torch.tensor([1]))
    expected = (data.test.inputs[1].float() / 255 - 0.2860) / 0.3530
    assert torch.allclose(inputs[0, 0, 2:30, 2:30], expected, atol=1e-6)
    assert torch.allclose(inputs[0, 0, :2], torch.tensor(BACKGROUND))


def test_without_being_asked_it_is_not_augmented(folder: Path) -> None:
    task = FashionMnist()
    inputs, _ = task.batch(task.load(folder).train, torch.arange(4))
    assert task.chances == 0
    assert task.augment(inputs, torch.empty(4, 0)) is inputs


def test_augmented_it_moves_and_mirrors_and_background_comes_in(folder: Path) -> None:
    task = parse("fashion-mnist(augmented=true, samples=6, test=3)", Task)
    data = task.load(folder)
    assert (len(data.train), len(data.test)) == (6, 3)
    inputs, _ = task.batch(data.train, torch.arange(4))
    assert task.chances == 3
    chances = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    chances[0] = torch.tensor([0.0, 0.0, 0.9])
    changed = task.augment(inputs, chances)
    assert torch.equal(changed, flip(crop(inputs, chances[:, :2], 4, BACKGROUND), chances[:, 2]))
    assert torch.allclose(changed[0, 0, :4], torch.tensor(BACKGROUND))
    assert torch.equal(changed[0, 0, 4:, 4:], inputs[0, 0, :-4, :-4])
