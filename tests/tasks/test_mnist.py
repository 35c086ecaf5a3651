"""MNIST as it was published, framed and normalised, and LeNet-5 can be trained on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sample_data import TEST, TRAIN, idx_files, write

from tutti.errors import UserError
from tutti.spec import SpecError, parse
from tutti.tasks.base import Task
from tutti.tasks.mnist import MNIST, Mnist


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(idx_files(), tmp_path)


def test_what_is_declared_is_what_the_format_makes_of_it() -> None:
    sizes = {file.name: file.size for file in MNIST.files}
    assert sizes == {
        "train-images-idx3-ubyte": 16 + MNIST.train * 28 * 28,
        "train-labels-idx1-ubyte": 8 + MNIST.train,
        "t10k-images-idx3-ubyte": 16 + MNIST.test * 28 * 28,
        "t10k-labels-idx1-ubyte": 8 + MNIST.test,
    }
    assert MNIST.name == Mnist().name
    assert len({file.sha256 for file in MNIST.files}) == len({file.md5 for file in MNIST.files}) == 4


def test_a_batch_is_framed_and_normalised(folder: Path) -> None:
    task = Mnist()
    data = task.load(folder)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (TRAIN, TEST, (1, 32, 32), 10)
    assert data.train.inputs.dtype == torch.uint8
    inputs, targets = task.batch(data.train, torch.tensor([3, 0]))
    assert inputs.shape == (2, 1, 32, 32)
    expected = (data.train.inputs[[3, 0]].float() / 255 - 0.1307) / 0.3081
    assert torch.allclose(inputs[:, 0, 2:30, 2:30], expected, atol=1e-6)
    assert torch.allclose(inputs[:, 0, 0], torch.tensor(-0.1307 / 0.3081))
    assert torch.equal(targets, data.train.targets[[3, 0]])


def test_a_part_of_the_samples(folder: Path) -> None:
    task = parse("mnist(samples=5, test=2)", Task)
    data = task.load(folder)
    assert (len(data.train), len(data.test)) == (5, 2)
    with pytest.raises(UserError, match=r"mnist\(samples=99\) is too many: there are 12"):
        Mnist(samples=99).load(folder)
    with pytest.raises(SpecError, match="must be at least 0, not -1"):
        parse("mnist(samples=-1)", Task)


def test_it_is_not_augmented(folder: Path) -> None:
    task = Mnist()
    inputs, _ = task.batch(task.load(folder).train, torch.arange(4))
    assert task.chances == 0
    assert task.augment(inputs, torch.empty(4, 0)) is inputs


def test_without_its_files_the_sentence_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"fetch it with: tutti data get mnist --data {tmp_path}"):
        Mnist().load(tmp_path)
