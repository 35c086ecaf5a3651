"""Both splits as bytes, cut where that was asked for, and batches of them as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sample_data import BATCH, CIFAR_NAMES, TEST, TRAIN, cifar_files, idx_files, make_data_set, write

from tutti.data.formats import read_cifar
from tutti.data.images import frame, normalise, read_cifar_splits, read_idx_splits
from tutti.errors import UserError

IDX, CIFAR = make_data_set(idx_files()), make_data_set(cifar_files(), name="cifar10")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(idx_files(), tmp_path / "mnist")
    write(cifar_files(), tmp_path / "cifar10")
    return tmp_path


def test_idx_splits(folder: Path) -> None:
    (images, labels), (test_images, test_labels) = read_idx_splits(IDX, folder, 0, 0)
    assert images.shape == (TRAIN, 28, 28)
    assert test_images.shape == (TEST, 28, 28)
    assert images.dtype == test_images.dtype == torch.uint8
    assert (len(labels), len(test_labels)) == (TRAIN, TEST)
    assert labels.dtype == test_labels.dtype == torch.int64


def test_cifar_splits_are_the_batches_in_their_order(folder: Path) -> None:
    (images, labels), (test_images, test_labels) = read_cifar_splits(CIFAR, folder, 0, 0)
    assert images.shape == (5 * BATCH, 3, 32, 32)
    for number, name in enumerate(CIFAR_NAMES[:5]):
        inputs, targets = read_cifar(folder / "cifar10" / name, 10, "")
        assert torch.equal(images[number * BATCH :][:BATCH], inputs)
        assert torch.equal(labels[number * BATCH :][:BATCH], targets.long())
    inputs, targets = read_cifar(folder / "cifar10" / "test_batch.bin", 10, "")
    assert torch.equal(test_images, inputs)
    assert torch.equal(test_labels, targets.long())


@pytest.mark.parametrize(("read", "dataset"), [(read_idx_splits, IDX), (read_cifar_splits, CIFAR)])
def test_the_first_so_many(folder: Path, read: object, dataset: object) -> None:
    (all_images, all_labels), (all_tests, _) = read(dataset, folder, 0, 0)  # type: ignore[operator]
    (images, labels), (tests, test_labels) = read(dataset, folder, 7, 3)  # type: ignore[operator]
    assert torch.equal(images, all_images[:7])
    assert torch.equal(labels, all_labels[:7])
    assert torch.equal(tests, all_tests[:3])
    assert len(test_labels) == 3
    assert len(read(dataset, folder, len(all_labels), 0)[0][1]) == len(all_labels)  # type: ignore[operator]


def test_more_than_there_are(folder: Path) -> None:
    with pytest.raises(UserError) as error:
        read_idx_splits(IDX, folder, TRAIN + 1, 0)
    assert str(error.value) == "mnist(samples=13) is too many: there are 12; 0 is all of them"
    with pytest.raises(UserError, match=r"cifar10\(test=5\) is too many: there are 4; 0 is all of them"):
        read_cifar_splits(CIFAR, folder, 0, BATCH + 1)


def test_a_damaged_file_is_to_be_fetched_to_where_it_lies(folder: Path) -> None:
    (folder / "cifar10" / "data_batch_3.bin").write_bytes(b"short")
    with pytest.raises(UserError, match=f"tutti data get cifar10 --data {folder}$"):
        read_cifar_splits(CIFAR, folder, 0, 0)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tutti data get mnist"):
        read_idx_splits(IDX, tmp_path, 0, 0)


def test_normalise_by_channel() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    numbers = normalise(images, (0.5, 0.5, 0.0), (0.5, 0.25, 2.0))
    assert numbers.dtype == torch.float32
    assert numbers.flatten().tolist() == pytest.approx([-1.0, 2.0, 0.1])


def test_the_frame_has_the_backgrounds_value() -> None:
    images = torch.full((2, 28, 28), 255, dtype=torch.uint8)
    framed = frame(images, 0.2, 0.5)
    assert framed.shape == (2, 1, 32, 32)
    assert torch.allclose(framed[..., 2:30, 2:30], torch.tensor(1.6))
    around = torch.ones(32, 32, dtype=torch.bool)
    around[2:30, 2:30] = False
    assert torch.allclose(framed[..., around], torch.tensor(-0.4))
