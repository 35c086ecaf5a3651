"""Reproductions: what a document measured, measured here, with a verdict on everything it claims.

A reproduction is a file of this folder: the jobs to run, and what their records show beside what was published. Ratios
travel from machine to machine, seconds do not.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from tutti.lab import reproductions
from tutti.lab.experiment import Job
from tutti.lab.inquiry import Folder, Inquiry, Statement
from tutti.lab.record import Record
from tutti.lab.report.page import show_runs
from tutti.lab.report.parts import Section

Verdict = Literal["reproduced", "not reproduced", "wrong"]


@dataclass(frozen=True)
class Claim(Statement):
    """Something the document says, its figure and ours, and what that makes of it."""

    published: str
    ours: str
    verdict: Verdict
    why: str


class Reproduction(Inquiry):
    document: ClassVar[str]  # what is reproduced, for a reader who does not have it
    data: ClassVar[tuple[str, ...]]  # the data sets that must be here
    repeats: ClassVar[int] = 1  # where there is time; a quick one runs everything once

    @abstractmethod
    def jobs(self, quick: bool) -> list[Job]:
        """What to run; a quick one ends within ten minutes on two cores."""

    def introduce(self, command: str) -> str:
        return (
            f"What {self.document} published, measured here by `{command}`. Seconds do not travel from machine to "
            "machine; ratios do."
        )

    def show_runs(self, records: list[Record]) -> list[Section]:
        return show_runs(records)


FOLDER = Folder(reproductions, Reproduction, "reproduction")


def names() -> list[str]:
    return FOLDER.names()


def find(name: str) -> Reproduction:
    return FOLDER.find(name)()
