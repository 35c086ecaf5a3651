"""What a task inherits: batches by index, cross entropy, correct answers, and the model as it is."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from fake_clock import FakeClock
from own_task import Stripes
from torch import nn

from tutti.errors import UserError
from tutti.tasks.base import Data, Split, Task, find_task, task_text


@dataclass
class Tiny(Task):
    default_model: ClassVar[str] = "lenet-5"

    def load(self, folder: Path | None = None) -> Data:
        split = Split(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1]))
        return Data(split, split, (2,), 2)


def test_a_batch_is_the_rows_asked_for() -> None:
    split = Tiny().load().train
    inputs, targets = Tiny().batch(split, torch.tensor([2, 0]))
    assert inputs.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert targets.tolist() == [1, 0]
    assert len(split) == 3


def test_only_the_first_samples_are_trained_on() -> None:
    data = Tiny().load()
    assert data.take(2).train.targets.tolist() == [0, 1]
    assert data.take(2).train.inputs.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert len(data.take(2).test) == 3
    assert data.take(None) is data.take(9) is data


def test_the_loss_is_the_mean_cross_entropy() -> None:
    scores = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    by_hand = -(scores.softmax(1).diagonal().log()).mean()
    assert Tiny().loss(scores, torch.tensor([0, 1])).item() == pytest.approx(by_hand.item())


def test_correct_counts_the_highest_scores() -> None:
    scores = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]])
    assert Tiny().correct(scores, torch.tensor([0, 1, 1])) == 2


def test_the_model_is_trained_as_it_is() -> None:
    model = nn.Linear(2, 2)
    assert Tiny().prepare(model, FakeClock()) is model


# --- a user's own -----------------------------------------------------------------------------------------------------


def test_a_users_own_task_is_called_what_the_user_calls_it() -> None:
    assert isinstance(find_task("own_task:make_task"), Stripes)
    assert task_text("own_task:make_task") == "own_task:make_task"


def test_a_task_of_the_folder_is_found_by_its_spec() -> None:
    assert find_task("digits").name == "digits"
    assert task_text("synthetic(samples=7,  compute=0)") == "synthetic(samples=7)"


def test_it_is_looked_for_where_the_user_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_here.py").write_text("from own_task import make_task as make")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path[:])
    assert isinstance(find_task("made_here:make"), Stripes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("no_such_module:make", "--task no_such_module:make: No module named 'no_such_module'; it is looked for from "),
        ("own_task:no_such", "there is no function no_such in .*own_task.py"),
        ("own_task:NO_FUNCTION", "there is no function NO_FUNCTION"),
        ("own_task:make_something_else", "returned str, not a tutti.tasks.base.Task"),
        ("own_task:break_down", "the function raised LookupError: no data today"),
        ("own_task:make_empty", "without load"),
    ],
)
def test_what_is_no_task_gets_a_sentence(text: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", sys.path[:])
    with pytest.raises(UserError, match=sentence):
        find_task(text)
