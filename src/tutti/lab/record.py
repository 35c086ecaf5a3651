"""What a run leaves behind, and what can be read off it: tables and pictures are made from records alone.

A record is one JSON file: name and spec, plan, launch, versions, machine, and the measurements of every worker.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import statistics
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tutti.errors import UserError
from tutti.files import name_problem, read_json
from tutti.lab.record_schema import clean, find_record_fault
from tutti.lab.times import Times
from tutti.machine import count_cores

FORMAT = 1  # fields may be added to it: an older version passes over those that it does not know
_WARM_UP = 5  # first steps that the distribution of steps leaves out, where there are enough others
_DIVERGED = 10  # times the loss of the first step: an end like this is no result

Value = TypeVar("Value")


@dataclass(frozen=True)
class Record:
    """One run; the figures below are its measurements seen from the outside.

    Times are on the clock that all workers share (lab/times.py). Records from before there was one have worker 0's own
    seconds, and the median over all workers and steps as the step (`own_clocks`).
    """

    name: str  # as typed
    spec: str  # canonical
    workers: int
    plan: dict[str, Any]
    launch: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    begun: str  # date and time, UTC
    wall_seconds: float  # from starting the workers to their end
    command: str
    measurements: list[dict[str, Any]]  # one per worker, see stopwatch.Measurements
    spelled: str = ""  # the spec with what was typed, also where that is the default; empty in older records

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return len(self.measurements[0]["seconds"])

    @property
    def accuracy(self) -> float:
        return float(self.evaluations[-1]["accuracy"])

    @property
    def loss(self) -> float:
        return float(self.evaluations[-1]["loss"])

    @property
    def diverged(self) -> bool:
        """Whether the loss at the end is no number, or many times what it was before anything was learnt."""
        if not self.measurements or not self.evaluations:
            return False
        firsts = [m["losses"][0] for m in self.measurements if m["losses"]]
        return not math.isfinite(self.loss) or self.loss > _DIVERGED * statistics.fmean(firsts or [math.inf])

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """epoch, step, seconds of training of the slowest worker, bytes sent by worker 0; accuracy and loss of the mean
        model, and, where workers differ, their distance from it: one entry per evaluation."""
        entries: list[dict[str, float]] = self.measurements[0]["evaluations"]
        if self.times is None:
            return entries
        return [{**each, "seconds": at} for each, at in zip(entries, self.times.evaluations, strict=True)]

    @property
    def own_accuracies(self) -> list[float]:
        """Of every worker's own model at the end; empty where all workers had the same."""
        found = [measurement.get("own_accuracy") for measurement in self.measurements]
        return [float(accuracy) for accuracy in found if accuracy is not None]

    @property
    def distance(self) -> float | None:
        """Of the workers from their mean at the end; None where all were equal."""
        last = self.evaluations[-1] if self.measurements and self.evaluations else {}
        return last.get("distance")

    @cached_property
    def times(self) -> Times | None:
        return Times.read(self.measurements)

    @property
    def own_clocks(self) -> bool:
        """Whether all there is are the workers' own seconds, as in older records."""
        return bool(self.measurements) and self.times is None

    @property
    def train_seconds(self) -> float:
        return self.times.total if self.times else float(sum(self.measurements[0]["seconds"]))

    @property
    def step_seconds(self) -> float:
        """Wall-clock over steps, the first ones included."""
        return self.times.total / self.steps if self.times else self._median("seconds")

    @property
    def all_steps(self) -> list[float]:
        """The seconds of every step; in older records the mean over all workers."""
        if self.times:
            return self.times.steps
        return [statistics.fmean(each) for each in zip(*(m["seconds"] for m in self.measurements), strict=True)]

    @property
    def typical_steps(self) -> list[float]:
        """The seconds of every step but the first ones, for their distribution."""
        if self.times:
            return self.counted(self.times.steps)
        return [second for m in self.measurements for second in self.counted(m["seconds"])]

    @property
    def samples_per_second(self) -> tuple[float, float]:
        """All workers together: the mean over the whole run, the standard deviation over all steps but the first."""
        samples = [sum(counts) for counts in zip(*(m["samples"] for m in self.measurements), strict=True)]
        if self.times:
            steps, mean = self.times.steps, sum(samples) / self.times.total
        else:
            steps = [max(seconds) for seconds in zip(*(m["seconds"] for m in self.measurements), strict=True)]
            mean = math.nan
        rates = [count / seconds for count, seconds in self.counted(list(zip(samples, steps, strict=True))) if seconds]
        deviation = statistics.stdev(rates) if len(rates) > 1 else 0.0
        return (statistics.fmean(rates) if rates else 0.0) if math.isnan(mean) else mean, deviation

    @property
    def bytes_per_step(self) -> float:
        """Sent by a worker, the mean over all of them."""
        return statistics.fmean(self.sent_per_step)

    @property
    def sent_per_step(self) -> list[float]:
        """The same for every worker; the busiest may send many times as much as the others. Where every worker has an
        interface of its own, what that counted: whole frames, acknowledgements too. Else payload."""
        return self.passed_per_step or self.payload_per_step

    @property
    def payload_per_step(self) -> list[float]:
        """Of every worker: metered on our wire, or by formula where a backend's own operation does not pass it."""
        return [float(m["bytes_per_step"]) for m in self.measurements]

    @property
    def passed_per_step(self) -> list[float] | None:
        """What every worker's interface counted, headers included; None where workers shared one."""
        counts = [m.get("interface_bytes_per_step") for m in self.measurements]
        known = [float(count) for count in counts if count is not None]
        return known if known and len(known) == len(counts) else None

    @property
    def bytes_source(self) -> str:
        """Of `sent_per_step`: interface, metered or formula."""
        return "interface" if self.passed_per_step else str(self.measurements[0]["bytes_source"])

    @property
    def choices(self) -> dict[str, str]:
        """What was left to the algorithm and it has found out: {"bucket": "2MB"}; empty in older records."""
        return dict(self.measurements[0].get("choices", {})) if self.measurements else {}

    @property
    def anatomy(self) -> dict[str, float]:
        """Where a step's seconds went, the mean over all workers; compute and exposed add up to the step. Exposed is
        also what a worker waits at evaluations for slower ones. Hidden communication ran beside computing and adds
        nothing. In older records: of the median step."""
        step, exposed, hidden = self.step_seconds, self._each_step("exposed"), self._each_step("hidden")
        if self.times:
            exposed += statistics.fmean(self.times.waited) / self.steps
        exposed = min(exposed, step)
        return {"compute": step - exposed, "hidden": hidden, "exposed": exposed}

    def row(self) -> dict[str, Any]:
        """The machine-readable result."""
        mean, std = self.samples_per_second
        return {
            "name": self.name,
            "spec": self.spec,
            "task": self.plan["task"],
            "workers": self.workers,
            "steps": self.steps,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "step_seconds": self.step_seconds,
            "median_step_seconds": statistics.median(self.typical_steps),
            "train_seconds": self.train_seconds,
            "samples_per_second": {"mean": mean, "std": std},
            "bytes_per_step": self.bytes_per_step,
            "busiest_bytes_per_step": max(self.sent_per_step),
            "bytes_source": self.bytes_source,
            "payload_bytes_per_step": statistics.fmean(self.payload_per_step),
            "anatomy": self.anatomy,
            **({"own_accuracies": self.own_accuracies} if self.own_accuracies else {}),
            **({"distance": self.distance} if self.distance is not None else {}),
        }

    def counted(self, values: list[Value]) -> list[Value]:
        """One value per step, without the first steps."""
        return values[_WARM_UP:] if len(values) > 2 * _WARM_UP else values[1:] or values

    def _each_step(self, key: str) -> float:
        """The mean over all workers and steps; in older records the median."""
        if self.times is None:
            return self._median(key)
        return statistics.fmean(float(seconds) for m in self.measurements for seconds in m[key])

    def _median(self, key: str) -> float:
        return float(statistics.median(v for m in self.measurements for v in self.counted(m[key])))

    # --- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Written whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        try:
            draft.write_text(json.dumps({"format": FORMAT, **asdict(self)}))
            draft.replace(path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: Path) -> Record:
        try:
            data = read_json(path)
        except OSError as error:
            raise UserError(f"cannot read {path}: {name_problem(error)}") from None
        except ValueError:
            raise UserError(f"{path} is no record of a run: it is not whole, or not JSON") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise UserError(f"{path} is a record of another version of tutti (this one reads format {FORMAT})")
        data = clean(data)
        fault = find_record_fault(data)
        if fault:
            raise UserError(f"{path} is no whole record of a run: {fault}")
        known = {each.name for each in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})


def describe_command() -> str:
    """As it was typed."""
    return shlex.join(["tutti", *sys.argv[1:]])


def describe_versions() -> dict[str, str]:
    import numpy
    import torch

    from tutti import __version__

    return {
        "tutti": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def describe_machine() -> dict[str, Any]:
    processor, cores = _processor(), count_cores()
    return {"system": platform.platform(), "processor": processor, "cores": cores, "host": platform.node()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
