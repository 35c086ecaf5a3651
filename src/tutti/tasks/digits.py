"""Handwritten digits, the 1,797 images of 8x8 that come inside scikit-learn: real data without a download.

They are the test set of UCI's Optical Recognition of Handwritten Digits, enlarged to 24x24 by bilinear interpolation
and framed by empty pixels to 32x32, as LeNet-5 takes them: its authors left such a frame so that the ends of strokes
come to the middle of what the last detectors see. Pixels are normalised by the mean and deviation of the training
split. The split (1,437 to train, 360 to test) is stratified and the same for every seed.

Paper: Alpaydin, Kaynak, "Cascading classifiers" (1998).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tutti.errors import UserError
from tutti.tasks.base import Data, Split, Task

_ENLARGED = 24
_FRAME = 4
_SIZE = _ENLARGED + 2 * _FRAME
_TEST_ONE_IN = 5


@dataclass
class Digits(Task):
    """Small enough to train in seconds, real enough to tell good from bad."""

    default_model: ClassVar[str] = "lenet-5"
    modules: ClassVar[tuple[str, ...]] = ("sklearn.datasets",)

    def load(self, folder: Path | None = None) -> Data:
        bunch = _bunch()
        images = _enlarge(torch.as_tensor(bunch.images, dtype=torch.float32).unsqueeze(1))
        targets = torch.as_tensor(bunch.target, dtype=torch.int64)
        train, test = (torch.from_numpy(rows) for rows in _split(bunch.target))
        deviation, mean = torch.std_mean(images[train])
        images = (images - mean) / deviation
        return Data(
            train=Split(images[train], targets[train]),
            test=Split(images[test], targets[test]),
            shape=(1, _SIZE, _SIZE),
            classes=10,
        )


def _bunch() -> Any:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError("the task digits needs scikit-learn: pip install scikit-learn") from None
    return load_digits()


def _enlarge(images: Tensor) -> Tensor:
    enlarged = functional.interpolate(images, size=(_ENLARGED, _ENLARGED), mode="bilinear", align_corners=False)
    return functional.pad(enlarged, (_FRAME,) * 4)


def _split(targets: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows to train and to test on: shuffled, ordered by class, and every fifth taken out for the test."""
    # RandomState, as numpy promises its sequence for ever; that of default_rng may change with a release.
    shuffled = np.random.RandomState(0).permutation(len(targets))
    by_class = shuffled[np.argsort(targets[shuffled], kind="stable")]
    test = np.sort(by_class[::_TEST_ONE_IN])
    return np.setdiff1d(by_class, test), test
