"""What the tasks on small images share: both splits from official files, and a batch of bytes made what a model takes.

Images stay bytes until a batch of them is needed: MNIST takes no time to load and its pages are shared by all workers.
CIFAR-10's training split lies in five files and is copied into one tensor of 154 MB.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tutti.data.dataset import DataSet
from tutti.data.formats import read_cifar, read_labelled_idx
from tutti.data.store import command, find
from tutti.errors import UserError

Samples = tuple[Tensor, Tensor]  # images as bytes, and their classes
_GREY = (28, 28)
_FRAME = 2  # pixels on every side that make 28x28 what LeNet-5 takes


def read_idx_splits(dataset: DataSet, folder: Path | None, train: int, test: int) -> tuple[Samples, Samples]:
    """The first so many samples to train and to test on, or all where that is 0, from four idx files."""
    paths, remedy = find(dataset, folder), command(dataset, folder)
    read = {
        split: read_labelled_idx(
            paths[f"{split}-images-idx3-ubyte"],
            paths[f"{split}-labels-idx1-ubyte"],
            _GREY,
            dataset.classes,
            remedy,
        )
        for split in ("train", "t10k")
    }
    return _first(read["train"], train, dataset, "samples"), _first(read["t10k"], test, dataset, "test")


def read_cifar_splits(dataset: DataSet, folder: Path | None, train: int, test: int) -> tuple[Samples, Samples]:
    """The same from the binary batches of CIFAR-10."""
    paths, remedy = find(dataset, folder), command(dataset, folder)
    batches = {name: read_cifar(path, dataset.classes, remedy) for name, path in paths.items()}
    tested = batches.pop("test_batch.bin")
    images, labels = (torch.cat(parts) for parts in zip(*batches.values(), strict=True))
    return _first((images, labels), train, dataset, "samples"), _first(tested, test, dataset, "test")


def _first(samples: Samples, count: int, dataset: DataSet, field: str) -> Samples:
    images, labels = samples
    if count > len(labels):
        raise UserError(f"{dataset.name}({field}={count}) is too many: there are {len(labels)}; 0 is all of them")
    count = count or len(labels)
    return images[:count], labels[:count].long()


def frame(images: Tensor, mean: float, deviation: float) -> Tensor:
    """Grey images of 28x28 as 1x32x32 with a frame of the background's value, normalised."""
    framed = functional.pad(images.unsqueeze(1), (_FRAME,) * 4)
    return normalise(framed, (mean,), (deviation,))


def normalise(images: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Bytes as floating numbers: from 0 to 1, less the mean of their channel, by its deviation."""
    means, deviations = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (mean, deviation))
    return images.float().div_(255).sub_(means).div_(deviations)
