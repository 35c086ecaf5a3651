"""Models: networks that are trained, built for the shape and the classes of a task."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from tutti.errors import UserError
from tutti.spec import Member


@dataclass
class Model(Member):
    """Builds a network; its weights depend on torch's random state and on nothing else."""

    axis: ClassVar[str] = "models"
    noun: ClassVar[str] = "model"

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new network from one input of this shape to one score per class."""

    def refusal(self, shape: tuple[int, ...], wanted: str) -> UserError:
        """The error for a shape that cannot work, naming what would."""
        return UserError(f"{self.name} takes inputs of {wanted}, not {'x'.join(map(str, shape))}")
