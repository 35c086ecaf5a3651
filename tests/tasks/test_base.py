"""What a task inherits: batches by index, cross entropy, correct answers, and the model as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from fake_clock import FakeClock
from torch import nn

from tutti.tasks.base import Data, Split, Task


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
