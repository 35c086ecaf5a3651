"""What one worker measures while it trains: times at the edges of every step, bytes, and what evaluations found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from tutti.comm.interface import read_sent
from tutti.engine import Run

_KINDS = ("gradients", "weights", "buffers")  # of traffic that training makes
_REPORT_SECONDS = 0.1  # how often worker 0 tells how far it is


@dataclass
class Measurements:
    """What one worker saw; one entry per step, and one per evaluation.

    `ends`, and `enter` and `leave` of an evaluation, are moments: seconds on this worker's clock since the barrier at
    the start. lab/times.py reads the time of all workers off them.
    """

    rank: int
    parameters: int = 0
    classes: list[int] = field(default_factory=list)  # samples of each class that are its own; empty where none are
    seconds: list[float] = field(default_factory=list)  # of its own steps, for their distribution
    ends: list[float] = field(default_factory=list)  # of its steps, since the start; empty in older records
    hidden: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)  # of the mean model
    own_accuracy: float | None = None  # of this worker's own model at the end, where workers differ
    bytes_per_step: float = 0.0
    bytes_source: str = "metered"
    interface_bytes_per_step: float | None = None  # where the interface is this worker's own
    traffic: list[dict[str, object]] = field(default_factory=list)
    lost: int = 0  # messages that it sent and that were lost on the way
    choices: dict[str, str] = field(default_factory=dict)  # what the algorithm found out by itself
    continued: list[int] = field(default_factory=list)  # the steps whose checkpoints it went on from


class Stopwatch:
    """Times every step between synchronised edges, and says when each ended since the start common to all workers."""

    def __init__(self, run: Run, report: Any, total: int, device: torch.device, classes: list[int]) -> None:
        self.total = total
        self._run, self._report, self._device = run, report, device
        self._log = Measurements(run.rank, sum(p.numel() for p in run.replica.model.parameters()), classes)
        if run.comm.interface:
            run.comm.barrier()  # so that the starting weights have passed
        self._at_start, self._passed_at_start = self._sent(), self._passed()
        self._formula_at_start, self._lost_at_start = self._by_formula(), run.meter.lost()
        self._trained = 0.0  # this worker's own seconds of training so far, for the screen
        report({"event": "begin", "steps": total, "workers": run.size, "parameters": self._log.parameters})
        run.comm.barrier()
        self._start = self._said = run.clock.now()

    def begin(self) -> None:
        self._run.take_times()
        self._begun = self._run.clock.now()

    def end(self, loss: Tensor, samples: int) -> None:
        log, value = self._log, float(loss.detach())
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        now = self._run.clock.now()
        hidden, exposed = self._run.take_times()
        log.seconds.append(now - self._begun)
        log.ends.append(now - self._start)
        log.hidden.append(hidden)
        log.exposed.append(exposed)
        log.samples.append(samples)
        log.losses.append(value)
        self._trained += now - self._begun
        if now - self._said >= _REPORT_SECONDS or len(log.seconds) == self.total:
            self._said = now
            self._say("step")

    def evaluated(self, epoch: float, found: dict[str, float]) -> None:
        """What was found by an evaluation that began at the end of the last step and is over now."""
        step, enter, leave = len(self._log.seconds), self._log.ends[-1], self._run.clock.now() - self._start
        entry = {"epoch": epoch, "step": step, "enter": enter, "leave": leave, "bytes": self._so_far()}
        self._log.evaluations.append({**entry, **found})
        self._say("evaluation")

    def complain(self, problem: str) -> None:
        """What could not be written; the run goes on."""
        self._report({"event": "problem", "problem": problem})

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def pause(self, work: Callable[[], Any]) -> None:
        """All workers do this, which is no training: the clock stands still while all of them are at it."""
        self._entered = self._run.clock.now() - self._start
        work()
        left = self._run.clock.now() - self._start
        self._start += max(0.0, min(self._each(left)) - max(self._each(self._entered)))

    def resume(self) -> None:
        """What was measured has been loaded: the clock goes on from where the slowest worker stopped."""
        entered = max(self._each(self._entered))
        self._log.continued.append(len(self._log.seconds))
        self._passed_at_start = self._passed() - self._passed_so_far
        self._run.comm.barrier()
        self._start = self._said = self._run.clock.now() - entered

    def state_dict(self) -> dict[str, Any]:
        """All that was measured so far, as it is inside of `pause`."""
        return {
            "log": json.dumps(asdict(self._log)),
            "entered": self._entered,
            "trained": self._trained,
            "sent": self._at_start,
            "formula": self._formula_at_start,
            "lost": self._lost_at_start,
            "passed": self._passed() - self._passed_at_start,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The meter, whose counts are absolute, is restored too."""
        self._log = Measurements(**json.loads(state["log"]))
        self._entered, self._trained, self._passed_so_far = state["entered"], state["trained"], state["passed"]
        self._at_start, self._formula_at_start, self._lost_at_start = state["sent"], state["formula"], state["lost"]

    def _each(self, moment: float) -> list[float]:
        return [float(row) for row in self._run.comm.gather_bytes(repr(moment).encode())]

    def collect(self, own_accuracy: float | None) -> list[dict[str, Any]]:
        log, run = self._log, self._run
        log.own_accuracy = own_accuracy
        known = run.algorithm.overlap_seconds()
        if known is not None:
            log.hidden, log.exposed = ([seconds] * len(log.seconds) for seconds in known)
        log.bytes_per_step = (self._sent() - self._at_start) / max(1, len(log.seconds))
        log.bytes_source = "formula" if self._by_formula() > self._formula_at_start else "metered"
        if run.comm.interface:
            log.interface_bytes_per_step = (self._passed() - self._passed_at_start) / max(1, len(log.seconds))
        log.lost = run.meter.lost() - self._lost_at_start
        log.traffic, log.choices = run.meter.rows(), run.algorithm.choices()
        rows: list[bytes] = run.comm.gather_bytes(json.dumps(asdict(log)).encode())
        return [json.loads(row) for row in rows]

    def _so_far(self) -> float:
        """Bytes of training: what the interface counted where this worker has one of its own, else payload."""
        return self._passed() - self._passed_at_start if self._run.comm.interface else self._sent() - self._at_start

    def _sent(self) -> float:
        return sum(self._run.meter.sent(kind) for kind in _KINDS)

    def _by_formula(self) -> float:
        return sum(self._run.meter.by_formula.get(kind, 0.0) for kind in _KINDS)

    def _passed(self) -> float:
        """What the interface counted, less the payload of evaluation."""
        return read_sent(self._run.comm.interface) - self._run.meter.sent("metrics") if self._run.comm.interface else 0

    def _say(self, event: str) -> None:
        log = self._log
        done = len(log.seconds)
        last = log.evaluations[-1] if log.evaluations else {}
        self._report(
            {
                "event": event,
                "step": done,
                "steps": self.total,
                "seconds": self._trained,
                "step_seconds": sum(log.seconds[-20:]) / len(log.seconds[-20:]),
                "loss": log.losses[-1],
                "accuracy": last.get("accuracy"),
                "bytes_per_step": self._so_far() / done,
            }
        )
