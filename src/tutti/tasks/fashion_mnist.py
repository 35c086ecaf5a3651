"""Fashion-MNIST: clothes from a shop's catalogue in the format of MNIST and harder to tell apart, grey, 28x28: 60,000
to train on and 10,000 to test.

Images get a frame of two empty pixels, which makes them the 32x32 that LeNet-5 takes, and are normalised by the mean
0.2860 and the deviation 0.3530 of the training split without the frame. With `augmented` a training image is moved by
up to four pixels, with background coming in, and every second one is mirrored.

Paper: Xiao et al., "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms" (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from torch import Tensor

from tutti.data.augment import crop, flip
from tutti.data.dataset import DataSet, File
from tutti.data.images import frame, read_idx_splits
from tutti.data.sources import Debian, Gzipped, Installed
from tutti.spec import Range
from tutti.tasks.base import Data, Split, Task

_MEAN, _DEVIATION = 0.2860, 0.3530

FASHION_MNIST = DataSet(
    "fashion-mnist",
    train=60_000,
    test=10_000,
    classes=10,
    files=(
        File(
            "train-images-idx3-ubyte",
            47_040_016,
            sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            md5="f4a8712d7a061bf5bd6d2ca38dc4d50a",
        ),
        File(
            "train-labels-idx1-ubyte",
            60_008,
            sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            md5="9018921c3c673c538a1fc5bad174d6f9",
        ),
        File(
            "t10k-images-idx3-ubyte",
            7_840_016,
            sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            md5="8181f5470baa50b63fa0f6fddb340f0a",
        ),
        File(
            "t10k-labels-idx1-ubyte",
            10_008,
            sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            md5="15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    sources=(
        Installed("/usr/share/datasets/fashion-mnist"),
        Gzipped("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
        Debian("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist", size=30_900_652),
    ),
    layouts=("FashionMNIST/raw", "FashionMNIST"),
)


@dataclass
class FashionMnist(Task):
    """Clothes, 28x28: MNIST's format, and harder."""

    default_model: ClassVar[str] = "lenet-5"
    data_set: ClassVar[DataSet] = FASHION_MNIST

    augmented: bool = False
    samples: Annotated[int, Range(least=0)] = 0  # the first so many to train on; 0 is all
    test: Annotated[int, Range(least=0)] = 0  # the first so many to test on; 0 is all

    def load(self, folder: Path | None = None) -> Data:
        train, test = read_idx_splits(self.data_set, folder, self.samples, self.test)
        return Data(Split(*train), Split(*test), (1, 32, 32), self.data_set.classes)

    def batch(self, split: Split, indices: Tensor) -> tuple[Tensor, Tensor]:
        return frame(split.inputs[indices], _MEAN, _DEVIATION), split.targets[indices]

    @property
    def chances(self) -> int:
        return 3 if self.augmented else 0

    def augment(self, inputs: Tensor, chances: Tensor) -> Tensor:
        if not self.augmented:
            return inputs
        return flip(crop(inputs, chances[:, :2], fill=-_MEAN / _DEVIATION), chances[:, 2])
