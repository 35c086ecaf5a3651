"""Tasks: data, loss and evaluation, with the model usually trained on them."""

from __future__ import annotations

import importlib
import os
import re
import sys
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from tutti.clock import Clock
from tutti.data.dataset import DataSet
from tutti.data.store import find
from tutti.errors import UserError
from tutti.spec import Member, names, parse


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

    def take(self, samples: int | None) -> Data:
        """Only so many to train on, the first ones; all that there are for None."""
        if samples is None or samples >= len(self.train):
            return self
        return replace(self, train=Split(self.train.inputs[:samples], self.train.targets[:samples]))


@dataclass
class Task(Member):
    """A classification task: a member says at least how its data is loaded, the same on every worker."""

    axis: ClassVar[str] = "tasks"
    noun: ClassVar[str] = "task"
    default_model: ClassVar[str]
    data_set: ClassVar[DataSet | None] = None  # what it reads from files
    modules: ClassVar[tuple[str, ...]] = ()  # slow to import; a launcher may do it once for all workers

    @abstractmethod
    def load(self, folder: Path | None = None) -> Data:
        """Both splits, ready to be indexed; `folder` is where the user keeps data, for tasks that read files."""

    def check_data(self, folder: Path | None = None) -> None:
        """Refuse what is not there, without reading it."""
        if self.data_set is not None:
            find(self.data_set, folder)

    def make_model(self, data: Data) -> nn.Module | None:
        """A network of the task's own; None where `default_model` names one of the models' folder."""
        return None

    @property
    def chances(self) -> int:
        """How many random numbers per sample `augment` takes; 0 where it changes nothing."""
        return 0

    def augment(self, inputs: Tensor, chances: Tensor) -> Tensor:
        """A training batch changed at random; `chances` has a row of numbers between 0 and 1 for every sample.

        They depend on seed, epoch and sample alone, so the batch does not depend on the number of workers.
        """
        return inputs

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


# --- a user's own ----------------------------------------------------------------------------------------------------

_OWN = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)")


def find_task(text: str) -> Task:
    """The task of a spec, or a user's own as package.module:function, which is called without arguments."""
    own = _OWN.fullmatch(text)
    if own is None or own[1] in names("tasks"):
        return parse(text, Task)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(own[1])
    except ModuleNotFoundError as error:
        raise UserError(f"--task {text}: {error}; it is looked for from {os.getcwd()}") from None
    function = getattr(module, own[2], None)
    if not callable(function):
        raise UserError(f"--task {text}: there is no function {own[2]} in {module.__file__}")
    try:
        task = function()
    except Exception as error:
        raise UserError(f"--task {text}: the function raised {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise UserError(f"--task {text} returned {type(task).__name__}, not a tutti.tasks.base.Task")
    if type(task).load is Task.load:
        raise UserError(f"--task {text} returned a task without load(), which gives it its data")
    return task


def task_text(text: str) -> str:
    """The spec in its canonical form; a user's own task is called what the user calls it."""
    task = find_task(text)
    return str(task) if type(task).__module__.startswith("tutti.tasks.") else text
