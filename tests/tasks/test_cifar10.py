"""CIFAR-10 as it was published, normalised by channel, and augmented unless that is not wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sample_data import BATCH, cifar_files, write

from tutti.data.augment import crop, flip
from tutti.errors import UserError
from tutti.spec import parse
from tutti.tasks.base import Task
from tutti.tasks.cifar10 import CIFAR_10, Cifar10

MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
DEVIATION = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(cifar_files(), tmp_path / "cifar-10-batches-bin")
    return tmp_path


def test_what_is_declared_is_what_the_format_makes_of_it() -> None:
    assert CIFAR_10.name == Cifar10().name
    assert CIFAR_10.size == (CIFAR_10.train + CIFAR_10.test) * 3073
    assert {file.size for file in CIFAR_10.files} == {10_000 * 3073}
    assert len({file.sha256 for file in CIFAR_10.files}) == len({file.md5 for file in CIFAR_10.files}) == 6


def test_a_batch_is_normalised(folder: Path) -> None:
    task = Cifar10()
    data = task.load(folder)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (5 * BATCH, BATCH, (3, 32, 32), 10)
    for split in (data.train, data.test):
        assert split.inputs.dtype == torch.uint8
        inputs, targets = task.batch(split, torch.tensor([3, 1]))
        expected = (split.inputs[[3, 1]].float() / 255 - MEAN) / DEVIATION
        assert torch.allclose(inputs, expected, atol=1e-6)
        assert torch.equal(targets, split.targets[[3, 1]])


def test_a_training_batch_is_moved_and_mirrored(folder: Path) -> None:
    task = Cifar10()
    inputs, _ = task.batch(task.load(folder).train, torch.arange(8))
    assert task.chances == 3
    chances = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
    changed = task.augment(inputs, chances)
    assert torch.equal(changed, flip(crop(inputs, chances[:, :2]), chances[:, 2]))
    assert not torch.equal(changed, inputs)


def test_unless_that_is_not_wanted(folder: Path) -> None:
    task = parse("cifar10(augmented=false, samples=6, test=2)", Task)
    data = task.load(folder)
    assert (len(data.train), len(data.test)) == (6, 2)
    inputs, _ = task.batch(data.train, torch.arange(4))
    assert task.chances == 0
    assert task.augment(inputs, torch.empty(4, 0)) is inputs


def test_without_its_files_the_sentence_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"fetch it with: tutti data get cifar10 --data {tmp_path}"):
        Cifar10().load(tmp_path)
