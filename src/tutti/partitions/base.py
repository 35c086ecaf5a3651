"""The contract of a partition: which samples belong to which worker.

Every sample belongs to exactly one worker, and nobody is left without one. Labels may be any whole numbers; members see
them as classes counted from 0, and draw from a generator of their own, so that the same seed gives the same shares on
every worker. Behind the contract stand the tools that several members share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from tutti.errors import UserError
from tutti.spec import Member, fields_of, format_value, hints_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class Partition(Member):
    axis: ClassVar[str] = "partitions"
    noun: ClassVar[str] = "partition"
    even: ClassVar[bool] = True  # shares are equal, or differ by one sample

    @abstractmethod
    def deal(self, targets: Tensor, workers: int, generator: Generator) -> Sequence[Ints]:
        """The samples of every worker, in any order."""

    def split(self, targets: Tensor, workers: int, seed: int) -> list[Tensor]:
        """The samples of every worker in rising order: the same for the same seed, targets and workers."""
        if workers > len(targets):
            raise UserError(
                f"{workers} workers cannot share {len(targets)} samples: use at most {len(targets)} workers"
            )
        shares = self.deal(targets, workers, np.random.default_rng(seed))
        return [torch.from_numpy(np.sort(share)) for share in shares]

    def find_classes(self, targets: Tensor) -> Ints:
        """Every sample's class, counted from 0 in the order of the labels."""
        if targets.dim() != 1 or targets.is_floating_point() or targets.is_complex():
            kind = f"{str(targets.dtype).removeprefix('torch.')}, {targets.dim()}-dimensional"
            raise UserError(
                f"'{self}' needs one class per sample, and these targets are {kind}; use iid or quantity-skew"
            )
        return np.unique(targets.cpu().numpy(), return_inverse=True)[1].reshape(-1).astype(np.int64)

    def __str__(self) -> str:
        """With all its parameters, the usual ones too: whoever reads a report wants to know alpha."""
        kinds = hints_of(type(self))
        texts = {
            field.name: format_value(getattr(self, field.name), kinds[field.name]) for field in fields_of(type(self))
        }
        said = [f"{name}={text}" if index else text for index, (name, text) in enumerate(texts.items())]
        return self.name + (f"({', '.join(said)})" if said else "")


# --- tools -----------------------------------------------------------------------------------------------------------


def cut_evenly(count: int, parts: int) -> Ints:
    """How many each part has; the first ones have one more where it does not come out even."""
    return (np.arange(parts, dtype=np.int64) < count % parts) + np.int64(count // parts)


def group(classes: Ints, generator: Generator) -> Ints:
    """All samples class by class, shuffled within each."""
    order = generator.permutation(len(classes))
    return order[np.argsort(classes[order], kind="stable")]


def hand_out(order: Ints, owners: Ints, workers: int) -> list[Ints]:
    """The samples of every worker, where `owners` says for each in `order` whose it is."""
    return [order[owners == worker] for worker in range(workers)]


def draw_leanings(shape: tuple[int, ...], alpha: Any, generator: Generator) -> Floats:
    """Logarithms of gamma variables: along the last axis they are Dirichlet proportions, but for their sum.

    As logarithms, since for a small alpha most of the proportions are too small to be told from zero. A gamma variable
    of shape alpha is one of shape alpha + 1 times a uniform one to the power of 1 / alpha.
    """
    larger = generator.gamma(np.broadcast_to(alpha, shape) + 1.0)
    leanings: Floats = np.log(larger) + np.log1p(-generator.random(shape)) / alpha
    return leanings


def normalise(leanings: Floats) -> Floats:
    """Proportions that add up to one along the last axis."""
    weights = np.exp(leanings - leanings.max(axis=-1, keepdims=True))
    proportions: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return proportions
