"""Which values of a few parameters are best for a job: on a grid, or by a search that learns from what it has tried.

    grid    all combinations; where the best learning rate is the lowest or highest tried, the next one beyond it too
    tpe     optuna's tree-structured Parzen estimator: the next trial where good ones were more likely than others

A search is a function of what has been tried so far, so it goes on where it was stopped: asked again with the same
scores, it asks for the same trials. The score is the mean accuracy at the end over the seeds, -1 where a run diverged.

Paper: Bergstra et al., "Algorithms for hyper-parameter optimization" (2011).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tutti.errors import UserError
from tutti.lab.experiment import Job
from tutti.lab.variation import change, make_slug, split_list

Method = Literal["grid", "tpe"]
LOST = -1.0  # the score of a trial that diverged
_RATE = "lr"
_BEYOND = 6  # steps that a grid may grow on either side
_AT_LIMIT = 1.05  # a factor that is no distance
_AT_RANDOM = 4  # trials before the search has learnt enough to choose


@dataclass(frozen=True)
class Axis:
    """A parameter and the values it may take, as they are typed. `between`: also all numbers from first to last."""

    name: str
    values: tuple[str, ...]
    between: Literal["", "factors", "steps"] = ""

    @classmethod
    def read(cls, text: str) -> Axis:
        """`momentum=0,0.9`, `lr=0.01:0.64:x2` (each twice the one before) or `mu=0.5:0.9:+0.1`."""
        name, mark, values = (part.strip() for part in text.partition("="))
        if not (name and mark and values):
            raise UserError(f"--vary takes NAME=VALUES, as in lr=0.01:0.64:x2 or momentum=0,0.9, not '{text}'")
        if values.count(":") == 2 and values.split(":")[2].strip()[:1] in ("x", "+"):
            return cls(name, *_read_range(text, *(part.strip() for part in values.split(":"))))
        return cls(name, tuple(split_list(values)))

    @classmethod
    def rates(cls, rates: Sequence[float]) -> Axis:
        return cls(_RATE, tuple(_write(rate) for rate in sorted(set(rates))), "factors")

    @property
    def grows(self) -> bool:
        """Only learning rates do: nothing else has values that go on in both directions for certain."""
        return self.name == _RATE and len(self.values) > 1 and all(float(value) > 0 for value in self.values)

    def grow(self, low: bool) -> Axis:
        first, second = (float(value) for value in (self.values[:2] if low else self.values[:-3:-1]))
        beyond = _write(first * first / second)
        return replace(self, values=(beyond, *self.values) if low else (*self.values, beyond))


def _read_range(text: str, first: str, last: str, stride: str) -> tuple[tuple[str, ...], Literal["factors", "steps"]]:
    kind: Literal["factors", "steps"] = "factors" if stride[0] == "x" else "steps"
    try:
        low, high, by = float(first), float(last), float(stride[1:])
    except ValueError:
        raise UserError(f"--vary takes numbers in FIRST:LAST:xFACTOR, as in lr=0.01:0.64:x2, not '{text}'") from None
    if not (low <= high and (low > 0 and by > 1 if kind == "factors" else by > 0)):
        raise UserError(f"--vary goes up from FIRST to LAST, as in lr=0.01:0.64:x2 or mu=0.5:0.9:+0.1, not '{text}'")
    values, value = [], low
    while value <= high * (1 + 1e-9):
        values.append(_write(value))
        value = value * by if kind == "factors" else low + len(values) * by
    return tuple(values), kind


def _write(value: float) -> str:
    return f"{float(f'{value:.3g}'):g}"


@dataclass(frozen=True)
class Trial:
    """A job with one value for every axis."""

    base: Job
    values: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The job's."""
        return "-".join([self.base.name, *(make_slug(f"{name} {value}") for name, value in self.values)])

    @property
    def job(self) -> Job:
        spec, plan = self.base.spec, self.base.plan
        for name, value in self.values:
            spec, plan = change(spec, plan, name, value)
        return replace(self.base, name=self.name, spec=spec, plan=plan)

    def __getitem__(self, name: str) -> str:
        return dict(self.values)[name]

    @property
    def label(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.values)


Score = Callable[[Trial], float | None]  # None: not yet tried


@dataclass(frozen=True)
class Progress:
    """How far a search is: what has been tried, and what to try next; nothing where it is over."""

    tried: Sequence[Trial]
    wanted: Sequence[Trial]
    axes: Sequence[Axis]

    def best(self, score: Score) -> Trial:
        """The highest score; among equals the one nearest to the middle of what was tried."""
        middle = (len(self.tried) - 1) / 2
        places = range(len(self.tried))
        return self.tried[max(places, key=lambda at: (score(self.tried[at]), -abs(at - middle)))]

    def at_edge(self, trial: Trial) -> bool:
        """Whether something better may lie beyond the learning rates that could be tried."""
        limits = {axis.name: (float(axis.values[0]), float(axis.values[-1])) for axis in self.axes if axis.grows}
        return any(not low * _AT_LIMIT < float(trial[name]) < high / _AT_LIMIT for name, (low, high) in limits.items())


@dataclass(frozen=True)
class Search:
    axes: tuple[Axis, ...]
    method: Method = "grid"
    trials: int = 12  # of a method that chooses them

    def follow(self, base: Job, score: Score) -> Progress:
        """What has been tried for this job, and what is to be tried next."""
        return self._on_grid(base, score) if self.method == "grid" else self._by_tpe(base, score)

    def ahead(self, progress: Progress) -> int:
        """How many more trials are certain, beside those wanted now."""
        return 0 if self.method == "grid" else self.trials - len(progress.tried) - len(progress.wanted)

    # --- grid --------------------------------------------------------------------------------------------------------

    def _on_grid(self, base: Job, score: Score) -> Progress:
        axes = self.axes
        while True:
            points = itertools.product(*([(axis.name, value) for value in axis.values] for axis in axes))
            trials = [Trial(base, point) for point in points]
            wanted = [trial for trial in trials if score(trial) is None]
            progress = Progress([trial for trial in trials if score(trial) is not None], wanted, axes)
            wider = axes if wanted else self._widen(axes, progress, score)
            if wider == axes:
                return progress
            axes = wider

    def _widen(self, axes: tuple[Axis, ...], progress: Progress, score: Score) -> tuple[Axis, ...]:
        """By the value beyond the best one, where that lies at an edge; downwards where all diverged."""
        best = progress.best(score)
        lost = score(best) == LOST
        return tuple(self._grow(axis, before, best, lost) for axis, before in zip(axes, self.axes, strict=True))

    def _grow(self, axis: Axis, before: Axis, best: Trial, lost: bool) -> Axis:
        if not axis.grows:
            return axis
        at = axis.values.index(best[axis.name])
        below = axis.values.index(before.values[0])
        above = len(axis.values) - len(before.values) - below
        if (at == 0 or lost) and below < _BEYOND:
            return axis.grow(low=True)
        if at == len(axis.values) - 1 and not lost and above < _BEYOND:
            return axis.grow(low=False)
        return axis

    # --- tpe ---------------------------------------------------------------------------------------------------------

    def _by_tpe(self, base: Job, score: Score) -> Progress:
        """All trials so far once more, as they were asked for and scored; then the next."""
        optuna = import_optuna()
        sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=_AT_RANDOM)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.enqueue_trial({axis.name: _middle(axis) for axis in self.axes})
        tried: list[Trial] = []
        for _ in range(self.trials):
            asked = study.ask()
            trial = Trial(base, tuple((axis.name, _suggest(asked, axis)) for axis in self.axes))
            found = score(trial)
            if found is None:
                return Progress(tried, [trial], self.axes)
            study.tell(asked, found)
            if trial not in tried:
                tried.append(trial)
        return Progress(tried, [], self.axes)


def _suggest(asked: Any, axis: Axis) -> str:
    if not axis.between:
        return str(asked.suggest_categorical(axis.name, list(axis.values)))
    first, last = float(axis.values[0]), float(axis.values[-1])
    return _write(asked.suggest_float(axis.name, first, last, log=axis.between == "factors"))


def _middle(axis: Axis) -> float | str:
    if not axis.between:
        return axis.values[len(axis.values) // 2]
    first, last = float(axis.values[0]), float(axis.values[-1])
    return math.sqrt(first * last) if axis.between == "factors" else (first + last) / 2


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("--search tpe needs optuna: pip install 'tutti-train[sweep]', or take --search grid") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
