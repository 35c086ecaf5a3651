"""Inquiries are found by the name of their file."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tutti.errors import UserError
from tutti.lab.inquiry import Folder, Inquiry, largest

SOURCE = """
from tutti.lab.inquiry import Inquiry, Story
class {name}(Inquiry):
    title = "{name}"
    def introduce(self, command): return command
    def tell(self, results): return Story("", [])
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder[Inquiry]]:
    package = ModuleType("toys")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "toys", package)
    (tmp_path / "base.py").write_text("")
    (tmp_path / "red_car.py").write_text(SOURCE.format(name="RedCar"))
    (tmp_path / "train.py").write_text(SOURCE.format(name="Train"))
    yield Folder(package, Inquiry, "toy")  # type: ignore[type-abstract]
    for name in ("toys.red_car", "toys.train"):
        sys.modules.pop(name, None)


def test_every_file_but_the_base_is_one(folder: Folder[Inquiry]) -> None:
    assert folder.names() == ["red-car", "train"]


def test_the_class_is_the_one_of_the_file_itself(folder: Folder[Inquiry]) -> None:
    """Not one that the file has imported, such as its base."""
    assert folder.find("red-car").title == "RedCar"
    assert folder.find("train")().introduce("so") == "so"


def test_a_name_that_is_not_there(folder: Folder[Inquiry]) -> None:
    with pytest.raises(UserError, match="there is no toy 'ship'; there is red-car, train"):
        folder.find("ship")


def test_the_largest_is_nan_where_one_is() -> None:
    assert largest([1.0, 3.0, 2.0]) == 3.0
    assert math.isnan(largest([3.0, math.nan, 4.0]))
