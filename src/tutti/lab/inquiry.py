"""What reproductions and studies are alike in: a file of a folder, jobs to run, and a story told from their records."""

from __future__ import annotations

import importlib
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from tutti.errors import UserError, suggest
from tutti.lab.experiment import Job, Results
from tutti.lab.record import Record
from tutti.lab.report.parts import Section, Table


@dataclass(frozen=True)
class Statement:
    """Something that is said. What it is held against, what was found and what that makes of it are further fields:
    they are columns of a table, `verdict` and `why` the last two."""

    text: str


@dataclass(frozen=True)
class Story:
    """What the records show: one sentence first, then claim by claim, then tables and figures."""

    finding: str
    claims: Sequence[Statement]
    sections: Sequence[Section] = field(default_factory=list)
    summary: Sequence[Table] = ()  # what a terminal shows beside the claims
    figures: Sequence[dict[str, Any]] = ()  # what lies behind the tables, for a program


class Inquiry(ABC):
    title: ClassVar[str]

    @abstractmethod
    def introduce(self, command: str) -> str:
        """The first paragraph of its page; `command` is what has been typed."""

    @abstractmethod
    def tell(self, results: Results) -> Story:
        """Read the records."""

    def more(self, results: Results) -> list[Job]:
        """What else to run, where that depends on what has been found so far; nothing where all is done."""
        return []

    def ahead(self, results: Results, jobs: list[Job]) -> list[Job]:
        """What is likely to follow when these jobs are done too: for the time that is left."""
        return []

    def settle(self, results: Results) -> list[str]:
        """What other commands can use is put where they find it; returns sentences that say so."""
        return []

    def show_runs(self, records: list[Record]) -> list[Section]:
        """What the report shows of the runs one by one, behind the story."""
        return []


Kind = TypeVar("Kind", bound=Inquiry)


@dataclass(frozen=True)
class Folder(Generic[Kind]):
    """The inquiries of one kind: a name is a file, which holds one class of that kind."""

    package: ModuleType
    kind: type[Kind]
    noun: str

    def names(self) -> list[str]:
        found = (info.name for info in pkgutil.iter_modules(self.package.__path__))
        return [name.replace("_", "-") for name in found if name != "base"]

    def find(self, name: str) -> type[Kind]:
        if name not in self.names():
            raise UserError(f"there is no {self.noun} '{name}'{suggest(name, self.names())}")
        module = importlib.import_module(f"{self.package.__name__}.{name.replace('-', '_')}")
        return next(
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, self.kind) and value.__module__ == module.__name__
        )


def largest(values: Iterable[float]) -> float:
    """nan where any of them is, which `max` would pass over."""
    found = list(values)
    return math.nan if any(map(math.isnan, found)) else max(found)
