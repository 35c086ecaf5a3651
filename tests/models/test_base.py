"""The error every model refuses a shape with."""

from __future__ import annotations

from tutti.errors import UserError
from tutti.models.lenet_5 import LeNet5


def test_the_refusal_names_the_model_the_shape_and_what_would_work() -> None:
    error = LeNet5().refusal((1, 8, 8), "Cx32x32")
    assert isinstance(error, UserError)
    assert str(error) == "lenet-5 takes inputs of Cx32x32, not 1x8x8"
