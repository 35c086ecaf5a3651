"""Tasks: data, loss and evaluation, with the model usually trained on them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor, nn
from torch.nn import functional

from tutti.spec import Member


class Clock(Protocol):
    """The time a run goes by, real or virtual."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Split:
    """Samples and their targets, row by row."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Data:
    """What a task trains and is tested on; `shape` is that of one input."""

    train: Split
    test: Split
    shape: tuple[int, ...]
    classes: int


@dataclass
class Task(Member):
    """A classification task: a member says at least how its data is loaded, the same on every worker."""

    axis: ClassVar[str] = "tasks"
    noun: ClassVar[str] = "task"
    default_model: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()  # slow to import; a launcher may do it once for all workers

    @abstractmethod
    def load(self) -> Data:
        """Both splits, ready to be indexed."""

    def batch(self, split: Split, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs and targets of these samples."""
        return split.inputs[indices], split.targets[indices]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch of what training minimises."""
        return functional.cross_entropy(outputs, targets)

    def correct(self, outputs: Tensor, targets: Tensor) -> int:
        """How many of the batch are classified right."""
        return int((outputs.argmax(dim=1) == targets).sum())

    def prepare(self, model: nn.Module, clock: Clock) -> nn.Module:
        """The module to train in place of the model: the model itself, unless the task changes how it computes."""
        return model
