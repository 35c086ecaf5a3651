"""What a run with checkpoints was asked to do, kept in its folder from its start: what `tutti run --continue` reads.

    DIR/checkpoints/run.json        name, spec, plan, the options of the command, whether the run is finished
    DIR/checkpoints/step-00000400/  see checkpoint_folder.py

It is read before this process has a second thread, since it may have to move to where hosts are made: nothing here
imports torch.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutti import __version__
from tutti.errors import NotWritten, UserError
from tutti.files import TEXT_LIMIT, name_problem, read_json
from tutti.lab.record_schema import find_started_fault

FORMAT = 1
_PATHS = ("save", "data", "tensorboard", "tls_cert", "tls_key", "tls_ca")
# what changes no bit of a run, and may be another when it goes on
_FREE = (
    *("keep", "checkpoint_every", "save", "json", "csv", "tensorboard", "quiet", "goes_on_in"),
    *("deadline", "interface", "tls", "tls_cert", "tls_key", "tls_ca", "node_rank", "master"),
)


@dataclass(frozen=True)
class Started:
    """A run with checkpoints, as it was started."""

    name: str  # of the run, as typed
    spec: str
    plan: dict[str, Any]
    options: dict[str, Any]  # of the command
    finished: str = ""  # the file of its record
    tutti: str = __version__
    format: int = FORMAT

    def write(self, out: Path) -> None:
        """Whole or not at all."""
        path = _find_file(out)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".draft")
            try:
                draft.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise NotWritten(f"cannot write {path}: {name_problem(error)}") from None

    def finish(self, out: Path, record: Path) -> None:
        dataclasses.replace(self, finished=str(record.relative_to(out))).write(out)

    @classmethod
    def read(cls, out: Path) -> Started:
        """Of a run that is not finished."""
        path = _find_file(out)
        try:
            data = read_json(path, TEXT_LIMIT)
        except FileNotFoundError:
            raise UserError(
                f"{out} holds no run to continue: there is no {path}, which tutti run --checkpoint-every N --out {out} "
                "writes at its start"
            ) from None
        except OSError as error:
            raise UserError(f"cannot read {path}: {name_problem(error)}") from None
        except ValueError:
            raise UserError(f"{path} is damaged: it is not whole, or not JSON") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise UserError(f"{path} is of another version of tutti, or no file of a run (this is {__version__})")
        fault = find_started_fault(data)
        if fault:
            raise UserError(f"{path} is damaged: {fault}")
        known = {each.name for each in dataclasses.fields(cls)}
        started = cls(**{key: value for key, value in data.items() if key in known})
        if started.finished:
            raise UserError(f"the run in {out} is finished; its record is {out / started.finished}")
        return started

    def merge(self, typed: dict[str, Any], out: Path) -> dict[str, Any]:
        """The options it was started with, and those typed now that may differ; one that contradicts is refused."""
        for key, value in typed.items():
            said, before = _plain(value), self.options.get(key)
            if key in _FREE or said == before or (key == "specs" and not value):
                continue
            if key == "out" and said == str(out.resolve()):
                continue
            if key == "specs":
                raise UserError(f"the run in {out} is of '{self.name}', not of '{' '.join(value)}'; leave the spec out")
            option = "--" + key.replace("_", "-")
            was = f"without {option}" if before is None or before is False else f"with {option} {before}"
            raise UserError(f"the run in {out} was started {was}; leave {option} out")
        options = {**self.options, **{key: value for key, value in typed.items() if key in _FREE}}
        paths = {key: Path(options[key]) for key in _PATHS if options.get(key) is not None}
        return {**options, **paths, "out": out}


def keep_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of a command, as JSON takes them."""
    return {key: _plain(value) for key, value in options.items() if key not in ("command", "words", "one")}


def find_folder(out: Path) -> Path:
    return out / "checkpoints"


def _find_file(out: Path) -> Path:
    return find_folder(out) / "run.json"


def _plain(value: Any) -> Any:
    return str(value.resolve()) if isinstance(value, Path) else value
