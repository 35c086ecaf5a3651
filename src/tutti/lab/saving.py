"""The records of runs on their way to the disk. One that cannot be written stays in memory while other runs go on, is
tried again behind each of them, and is written elsewhere in the end: a full disk must not cost a measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tutti.errors import NotWritten
from tutti.files import Refuge, name_problem
from tutti.lab.record import Record


class Saving:
    """A context manager: when it ends, by an error too, every record is somewhere, or its loss is said.

    `problems` are sentences about what could not be written where it belongs, also by workers.
    """

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.problems: list[str] = []
        self._complain, self._waiting, self._refuge = complain, dict[Path, Record](), Refuge()

    def save(self, record: Record, path: Path) -> str:
        """Why it has to wait, if it has to."""
        self._waiting[path] = record
        return self._try_all().get(path, "")

    @property
    def all_written(self) -> bool:
        return not self._waiting

    def hear(self, event: dict[str, Any]) -> bool:
        """What a worker could not write; whether that is new."""
        problem = str(event["problem"])
        new = problem not in self.problems
        self.problems += [problem] if new else []
        return new

    def attempt(self, work: Callable[[], object]) -> bool:
        """Whether this could be done; if not, the reason is one of the problems."""
        try:
            work()
        except NotWritten as error:
            self.problems.append(str(error))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            self.problems.append(f"cannot write {where}{name_problem(error)}")
        else:
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._try_all()
        for path, record in self._waiting.items():
            self.problems.append(self._refuge.write(path, record.save))
        self._waiting = {}
        for problem in dict.fromkeys(each for each in self.problems if each):
            self._complain(problem)

    def _try_all(self) -> dict[Path, str]:
        """Why which of those that wait cannot be written now."""
        reasons = {}
        for path, record in list(self._waiting.items()):
            try:
                record.save(path)
                del self._waiting[path]
            except OSError as error:
                reasons[path] = name_problem(error)
        return reasons
